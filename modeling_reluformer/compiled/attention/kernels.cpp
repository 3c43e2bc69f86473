// The kernels of kernels.h for one instruction set, RELUFORMER_ISA: avx2, avx512 or neon.
#include "kernels.h"

#include <cstring>

#include "activations.h"

namespace reluformer {
namespace {

int64_t smaller(int64_t first, int64_t second) {
  return first < second ? first : second;
}

// How many columns row i of a tile sees.
int64_t visible_columns(const Tile& tile, int64_t i) {
  if (i >= tile.real_rows) {
    return 0;
  }
  const int64_t visible = smaller(tile.visible + (tile.causal ? i : 0), tile.limit);
  return visible < 0 ? 0 : visible;
}

// Zeros behind the visible columns, and where keys are not real.
Floats hide(const Tile& tile, Floats values, int64_t column, int64_t visible) {
  if (column + kLanes > visible) {
    values = lane_numbers() + static_cast<int32_t>(column) < static_cast<int32_t>(visible) ? values : all(0.0f);
  }
  if (tile.real_keys) {
    values = vector_at<Ints>(tile.real_keys + column) ? values : all(0.0f);
  }
  return values;
}

Floats dropout_factors(const Dropout& dropout, uint32_t key, int64_t column) {
  Words hash = (reinterpret_cast<Words>(lane_numbers()) + static_cast<uint32_t>(column + 1)) * 0x9E3779B9u ^ key;
  hash = (hash ^ (hash >> 16)) * 0x21F0AAADu;
  hash = (hash ^ (hash >> 15)) * 0x735A2D97u;
  hash ^= hash >> 15;
  return hash >= static_cast<uint32_t>(dropout.threshold) ? all(dropout.kept) : all(0.0f);
}

// The lanes of two registers by their numbers, those of the second from kLanes on.
template <int... lane>
__attribute__((always_inline)) inline Floats chosen(Floats first, Floats second) {
#ifdef __clang__
  return __builtin_shufflevector(first, second, lane...);
#else
  return __builtin_shuffle(first, second, Ints{lane...});
#endif
}

// Exchanges the columns with bit `step` of the first row of two for those without it of the second.
template <int step, int... lane>
__attribute__((always_inline)) inline void exchange(Floats (&block)[kLanes], std::integer_sequence<int, lane...>) {
#pragma GCC unroll 16
  for (int row = 0; row < kLanes; ++row) {
    if (!(row & step)) {
      const Floats first = block[row], second = block[row + step];
      block[row] = chosen<(lane & step ? kLanes + (lane ^ step) : lane)...>(first, second);
      block[row + step] = chosen<(lane & step ? kLanes + lane : lane ^ step)...>(first, second);
    }
  }
}

// kLanes × kLanes, by exchanging halves, quarters, …
__attribute__((always_inline)) inline void transpose_block(Floats (&block)[kLanes]) {
  if constexpr (kLanes == 16) {
    exchange<8>(block, EachLane());
  }
  if constexpr (kLanes >= 8) {
    exchange<4>(block, EachLane());
  }
  exchange<2>(block, EachLane());
  exchange<1>(block, EachLane());
}

// Two rows of results as pairs; of float, one after the other.
inline void store_pair(float* to, int64_t stride, int64_t row, int64_t column, Floats first, Floats second) {
  store(to + row * stride + column, first);
  store(to + (row + 1) * stride + column, second);
}

inline void store_pair(BFloat16* to, int64_t stride, int64_t row, int64_t column, Floats first, Floats second) {
  const Words pair = __builtin_convertvector(rounded(first), Words) | (__builtin_convertvector(rounded(second), Words) << 16);
  std::memcpy(static_cast<void*>(to + row * stride + 2 * column), &pair, sizeof pair);
}

// A row whose numbers may be wider in the tile than in the tensor.
template <typename Scalar, typename Number>
void copy_row(const Scalar* from, int64_t width, Number* to) {
  if constexpr (std::is_same_v<Scalar, Number>) {
    std::memcpy(static_cast<void*>(to), from, width * sizeof(Scalar));
  } else {
    int64_t column = 0;
    for (; column + kLanes <= width; column += kLanes) {
      store(to + column, load(from + column));
    }
    for (; column < width; ++column) {
      to[column] = widen(from[column]);
    }
  }
}

template <typename Scalar, typename Number>
void copy_rows(const Scalar* from, int64_t stride, int64_t count, int64_t width, const bool* real, Number* to,
               int64_t padded_count, int64_t padded_width) {
  for (int64_t row = 0; row < count; ++row, from += stride, to += padded_width) {
    if (real && !real[row]) {
      std::memset(static_cast<void*>(to), 0, padded_width * sizeof(Number));
    } else {
      copy_row(from, width, to);
      std::memset(static_cast<void*>(to + width), 0, (padded_width - width) * sizeof(Number));
    }
  }
  std::memset(static_cast<void*>(to), 0, (padded_count - count) * padded_width * sizeof(Number));
}

// Pairs of bfloat16 are words, which are moved whole.
void transpose_words(const float* from, int64_t rows, int64_t columns, int64_t from_stride, float* to, int64_t stride) {
  Floats block[kLanes];
  for (int64_t row = 0; row < rows; row += kLanes) {
    for (int64_t column = 0; column < columns; column += kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = vector_at<Floats>(reinterpret_cast<const char*>(from) + (row + i) * from_stride + column * sizeof(float));
      }
      transpose_block(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        store(to + (column + i) * stride + row, block[i]);
      }
    }
  }
}

template <typename Scalar>
void transpose(const Scalar* from, int64_t rows, int64_t columns, int64_t from_stride, bool pairs, Scalar* to, int64_t stride) {
  if (sizeof(Scalar) == 2 && pairs && columns % (2 * kLanes) == 0) {
    transpose_words(reinterpret_cast<const float*>(from), rows, columns / 2, from_stride * 2, reinterpret_cast<float*>(to), stride);
    return;
  }
  Floats block[kLanes];
  for (int64_t row = 0; row < rows; row += kLanes) {
    for (int64_t column = 0; column < columns; column += kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = load(from + (row + i) * from_stride + column);
      }
      transpose_block(block);
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; i += 2) {
        if (pairs) {
          store_pair(to, stride, column + i, row, block[i], block[i + 1]);
        } else {
          store(to + (column + i) * stride + row, block[i]);
          store(to + (column + i + 1) * stride + row, block[i + 1]);
        }
      }
    }
  }
}

template <typename Scalar>
void pair_rows(const Scalar* from, int64_t rows, int64_t columns, int64_t stride, Scalar* to) {
  for (int64_t row = 0; row < rows; row += 2) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      store_pair(to, columns, row, column, load(from + row * stride + column), load(from + (row + 1) * stride + column));
    }
  }
}

template <typename H, typename Scalar>
void weigh(const Tile& tile, const float* scores, Scalar* weights, float* sums, float* sums_log) {
  const bool drop = tile.dropout.keys != nullptr;
  for (int64_t i = 0; i < tile.rows; ++i, scores += tile.stride, weights += tile.stride) {
    const int64_t visible = visible_columns(tile, i);
    Floats sum{}, sum_log{};
    int64_t column = 0;
    for (; column < visible; column += kLanes) {
      Floats weight = hide(tile, H::value(load(scores + column) * tile.scale), column, visible);
      if (sums) {
        sum += weight;
      }
      if (sums_log) {
        sum_log += weight * logarithm<false>(weight);
      }
      if (drop) {
        weight *= dropout_factors(tile.dropout, tile.dropout.keys[i], tile.first_column + column);
      }
      store(weights + column, weight);
    }
    if (column < tile.columns) {
      std::memset(static_cast<void*>(weights + column), 0, (tile.columns - column) * sizeof(Scalar));
    }
    if (sums && visible) {
      sums[i] += sum_of(sum);
    }
    if (sums_log && visible) {
      sums_log[i] += sum_of(sum_log);
    }
  }
}

struct RowGain {
  float rho, tau;
  uint32_t key;
  int64_t visible;
};

// One vector of one row: the gradient of the products and the dropped weights.
template <typename H>
inline void differentiate_vector(const Tile& tile, const RowGain& row, const float* scores, const float* gradients,
                                 int64_t column, Floats& gradient, Floats& weight) {
  const Floats x = load(scores + column) * tile.scale;
  Floats u = H::value(x), g = load(gradients + column);
  Floats factors = all(1.0f);
  if (tile.dropout.keys) {
    factors = dropout_factors(tile.dropout, row.key, tile.first_column + column);
    g *= factors;
  }
  g += row.rho;
  if (row.tau != 0.0f) {
    g += row.tau * logarithm<true>(u);
  }
  gradient = hide(tile, H::chain(x, u, g) * tile.scale, column, row.visible);
  weight = hide(tile, u * factors, column, row.visible);
}

template <typename H, typename Scalar>
void differentiate(const Tile& tile, const float* scores, const float* gradients, const float* rho, const float* tau,
                   Scalar* weights, Scalar* rows, Scalar* pairs) {
  const bool drop = tile.dropout.keys != nullptr;
  for (int64_t i = 0; i < tile.rows; i += 2) {
    const RowGain first{rho ? rho[i] : 0.0f, tau ? tau[i] : 0.0f, drop ? tile.dropout.keys[i] : 0, visible_columns(tile, i)};
    const RowGain second{rho ? rho[i + 1] : 0.0f, tau ? tau[i + 1] : 0.0f, drop ? tile.dropout.keys[i + 1] : 0, visible_columns(tile, i + 1)};
    const float* scores_of[] = {scores + i * tile.stride, scores + (i + 1) * tile.stride};
    const float* gradients_of[] = {gradients + i * tile.stride, gradients + (i + 1) * tile.stride};
    const int64_t visible = first.visible < second.visible ? second.visible : first.visible;
    for (int64_t column = 0; column < tile.columns; column += kLanes) {
      Floats gradient[2] = {}, weight[2] = {};
      if (column < visible) {
        differentiate_vector<H>(tile, first, scores_of[0], gradients_of[0], column, gradient[0], weight[0]);
        differentiate_vector<H>(tile, second, scores_of[1], gradients_of[1], column, gradient[1], weight[1]);
      }
      store_pair(weights, tile.stride, i, column, weight[0], weight[1]);
      store_pair(pairs, tile.stride, i, column, gradient[0], gradient[1]);
      if (static_cast<void*>(rows) != static_cast<void*>(pairs)) {
        store(rows + i * tile.stride + column, gradient[0]);
        store(rows + (i + 1) * tile.stride + column, gradient[1]);
      }
    }
  }
}

template <typename Scalar>
void write_rows(const float* values, int64_t values_stride, const float* factors, int64_t rows, int64_t width, Scalar* to, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, values += values_stride, to += stride) {
    const float factor = factors ? factors[row] : 1.0f;
    int64_t column = 0;
    for (; column + kLanes <= width; column += kLanes) {
      store(to + column, load(values + column) * factor);
    }
    for (; column < width; ++column) {
      narrow(to + column, values[column] * factor);
    }
  }
}

template <typename Scalar>
void write_transposed(const float* values, int64_t values_stride, int64_t rows, int64_t width, Scalar* to, int64_t stride) {
  Floats block[kLanes];
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t count = smaller(kLanes, rows - row);
    for (int64_t column = 0; column < width; column += kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = load(values + (column + i) * values_stride + row);
      }
      transpose_block(block);
      if (count == kLanes && column + kLanes <= width) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          store(to + (row + i) * stride + column, block[i]);
        }
        continue;
      }
      const int64_t wide = smaller(kLanes, width - column);
      write_rows(reinterpret_cast<const float*>(block), kLanes, nullptr, count, wide, to + row * stride + column, stride);
    }
  }
}

template <typename Scalar, typename Number>
void scale_rows(const Scalar* from, int64_t stride, int64_t count, int64_t width, const float* factors, Number* to,
                int64_t padded_count, int64_t padded_width) {
  copy_rows(from, stride, count, width, nullptr, to, padded_count, padded_width);
  for (int64_t row = 0; factors && row < count; ++row, to += padded_width) {
    for (int64_t column = 0; column < padded_width; column += kLanes) {
      store(to + column, load(to + column) * factors[row]);
    }
  }
}

// The products of a query with `count` keys, at most kLanes, whose sums are taken together: one by one they cost more than the products.
template <typename Scalar>
Floats dots(const Scalar* query, const Scalar* keys, int64_t stride, int64_t count, int64_t dims) {
  Floats block[kLanes] = {}, rest{};
  for (int64_t j = 0; j < count; ++j, keys += stride) {
    Floats sum{};
    int64_t i = 0;
    for (; i + kLanes <= dims; i += kLanes) {
      sum += load(query + i) * load(keys + i);
    }
    for (; i < dims; ++i) {
      rest[j] += widen(query[i]) * widen(keys[i]);
    }
    block[j] = sum;
  }
  transpose_block(block);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      block[lane] += block[lane + half];
    }
  }
  return block[0] + rest;
}

// Adds weights[j] · row j of the values to the output; of no key but padding is the value left out, as in a product of matrices, in
// which zero times NaN is NaN.
template <int kVectors, typename Scalar>
void add_values(const float* weights, const Scalar* values, int64_t stride, int64_t visible, const bool* real, float* output) {
  Floats sums[kVectors] = {};
  for (int64_t j = 0; j < visible; ++j, values += stride) {
    if (!real || real[j]) {
      for (int i = 0; i < kVectors; ++i) {
        sums[i] += weights[j] * load(values + i * kLanes);
      }
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    store(output + i * kLanes, sums[i]);
  }
}

template <typename H, typename Scalar>
void attend_row(const Tile& tile, const Scalar* query, const Scalar* keys, int64_t key_stride, const Scalar* values,
                int64_t value_stride, int64_t dims, int64_t dims_v, const bool* real, float* weights, float* output,
                float* sums, float* sums_log) {
  const int64_t visible = visible_columns(tile, 0);
  for (int64_t j = 0; j < visible; j += kLanes) {
    store(weights + j, dots(query, keys + j * key_stride, key_stride, smaller(kLanes, visible - j), dims));
  }
  for (int64_t j = 0; real && j < visible; ++j) {
    weights[j] = real[j] ? weights[j] : 0.0f;
  }
  Tile row = tile;
  row.rows = 1;
  row.columns = round_up(visible, kLanes);
  weigh<H, float>(row, weights, weights, sums, sums_log);
  int64_t i = 0;
  for (; i + 4 * kLanes <= dims_v; i += 4 * kLanes) {
    add_values<4>(weights, values + i, value_stride, visible, real, output + i);
  }
  for (; i + kLanes <= dims_v; i += kLanes) {
    add_values<1>(weights, values + i, value_stride, visible, real, output + i);
  }
  for (; i < dims_v; ++i) {
    output[i] = 0.0f;
    for (int64_t j = 0; j < visible; ++j) {
      output[i] += real && !real[j] ? 0.0f : weights[j] * widen(values[j * value_stride + i]);
    }
  }
}

template <typename Scalar, typename Number>
constexpr Kernels<Scalar, Number> kernels_of() {
#define RELUFORMER_EACH(function, Type)                                                                                   \
  {                                                                                                                       \
    function<Relu, Type>, function<Relu2, Type>, function<Relu6, Type>, function<Sigmoid, Type>,                          \
        function<Softplus, Type>, function<Gelu, Type>, function<Identity, Type>                                          \
  }
  return {copy_rows<Scalar, Number>, transpose<Number>, pair_rows<Number>, RELUFORMER_EACH(weigh, Number),
          RELUFORMER_EACH(differentiate, Number), write_rows<Scalar>, write_transposed<Scalar>, scale_rows<Scalar, Number>,
          RELUFORMER_EACH(attend_row, Scalar)};
#undef RELUFORMER_EACH
}

}  // namespace

namespace RELUFORMER_ISA {
extern const KernelSet kernels;
#ifdef __AVX512BF16__
constexpr Kernels<BFloat16> kOfBFloat16 = kernels_of<BFloat16, BFloat16>();
const KernelSet kernels = {kernels_of<float, float>(), &kOfBFloat16, nullptr};
#else
constexpr Kernels<BFloat16, float> kOfWidened = kernels_of<BFloat16, float>();
const KernelSet kernels = {kernels_of<float, float>(), nullptr, &kOfWidened};
#endif
}  // namespace RELUFORMER_ISA

}  // namespace reluformer
