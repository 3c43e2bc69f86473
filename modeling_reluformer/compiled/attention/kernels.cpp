// The kernels of kernels.h for one instruction set, RELUFORMER_ISA: avx2, avx512 or neon.
#include "kernels.h"

#include <algorithm>
#include <cstring>

#include "activations.h"
#include "product.h"

namespace reluformer {
namespace {

int64_t smaller(int64_t first, int64_t second) { return first < second ? first : second; }

// The columns that a row sees: from `begin` up to `end`.
struct Visible {
  int64_t begin, end;
};

// Those of row i of a tile.
Visible visible_columns(const Tile& tile, int64_t i) {
  if (i >= tile.real_rows) {
    return {0, 0};
  }
  const int64_t last = tile.visible + (tile.causal ? i : 0), limited = smaller(last, tile.limit);
  const int64_t end = limited < 0 ? 0 : limited, begin = tile.causal ? smaller(last - tile.window, end) : 0;
  return {begin < 0 ? 0 : begin, end};
}

// Zeros before and after the visible columns, and where keys are not real.
Floats hide(const Tile& tile, Floats values, int64_t column, const Visible& visible) {
  if (column + kLanes > visible.end) {
    values =
        lane_numbers() + static_cast<int32_t>(column) < static_cast<int32_t>(visible.end) ? values : broadcast(0.0f);
  }
  if (column < visible.begin) {
    values =
        lane_numbers() + static_cast<int32_t>(column) < static_cast<int32_t>(visible.begin) ? broadcast(0.0f) : values;
  }
  if (tile.real_keys) {
    values = vector_at<Ints>(tile.real_keys + column) ? values : broadcast(0.0f);
  }
  return values;
}

Floats dropout_factors(const Dropout& dropout, uint32_t key, int64_t column) {
  Words hash = (reinterpret_cast<Words>(lane_numbers()) + static_cast<uint32_t>(column + 1)) * 0x9E3779B9u ^ key;
  hash = (hash ^ (hash >> 16)) * 0x21F0AAADu;
  hash = (hash ^ (hash >> 15)) * 0x735A2D97u;
  hash ^= hash >> 15;
  return hash >= static_cast<uint32_t>(dropout.threshold) ? broadcast(dropout.kept) : broadcast(0.0f);
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

// kLanes rows of kLanes numbers, `stride` apart, as columns.
template <typename Number>
__attribute__((always_inline)) inline void load_transposed(const Number* first, int64_t stride,
                                                           Floats (&block)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    block[i] = load(first + i * stride);
  }
  transpose_block(block);
}

// Two rows of results as pairs; of float, one after the other.
inline void store_pair(const Matrix<float>& to, int64_t row, int64_t column, Floats first, Floats second) {
  store(to.data + to.layout.offset(row, column), first);
  store(to.data + to.layout.offset(row + 1, column), second);
}

inline void store_pair(const Matrix<BFloat16>& to, int64_t row, int64_t column, Floats first, Floats second) {
  const Words pair =
      __builtin_convertvector(rounded(first), Words) | (__builtin_convertvector(rounded(second), Words) << 16);
  std::memcpy(static_cast<void*>(to.data + row * to.layout.row + 2 * column), &pair, sizeof pair);
}

// Some columns of a row, whose numbers may be wider in the tile than in the tensor.
template <typename Scalar, typename Number>
inline void copy_numbers(const Scalar* from, int64_t count, Number* to) {
  if constexpr (std::is_same_v<Scalar, Number>) {
    std::memcpy(static_cast<void*>(to), from, count * sizeof(Scalar));
  } else {
    int64_t column = 0;
    for (; column + kLanes <= count; column += kLanes) {
      store(to + column, load(from + column));
    }
    for (; column < count; ++column) {
      to[column] = widen(from[column]);
    }
  }
}

// function(column, count): of the numbers of a row that lie side by side in both layouts, sixteen at a time
template <typename Function>
inline void for_each_panel(int64_t width, Function function) {
  int64_t column = 0;
  for (; column + kColumns <= width; column += kColumns) {
    function(column, kColumns);
  }
  if (column < width) {
    function(column, width - column);
  }
}

template <typename Scalar, typename Number>
void copy_rows(const Matrix<const Scalar>& from, const Size& size, const bool* real, const Matrix<Number>& to,
               const Size& padded) {
  for (int64_t row = 0; row < padded.rows; ++row) {
    const int64_t width = row < size.rows && (!real || real[row]) ? size.columns : 0;
    const Scalar* numbers = from.data + row * from.layout.row;
    for_each_panel(padded.columns, [&](int64_t column, int64_t) {
      Number* panel = to.data + to.layout.offset(row, column);
      const int64_t count = width - column < kColumns ? width - column : kColumns;
      if (count == kColumns) {
        copy_numbers(numbers + column, kColumns, panel);
      } else {
        std::memset(static_cast<void*>(panel), 0, kColumns * sizeof(Number));
        copy_numbers(numbers + column, count > 0 ? count : 0, panel);
      }
    });
  }
}

// Pairs of bfloat16 are words, which are moved whole.
void transpose_words(const Matrix<const float>& from, const Size& size, const Matrix<float>& to) {
  Floats block[kLanes];
  for (int64_t row = 0; row < size.rows; row += kLanes) {
    for (int64_t column = 0; column < size.columns; column += kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = vector_at<Floats>(from.data + (row + i) * from.layout.row + column);
      }
      transpose_block(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        store(to.data + (column + i) * to.layout.row + row, block[i]);
      }
    }
  }
}

template <typename Number>
void transpose(const Matrix<const Number>& from, const Size& size, bool pairs, const Matrix<Number>& to) {
  if (sizeof(Number) == 2 && pairs && size.columns % (2 * kLanes) == 0 && from.layout.row % 2 == 0) {
    const Matrix<const float> words{reinterpret_cast<const float*>(from.data), in_rows(from.layout.row / 2)};
    transpose_words(words, {size.rows, size.columns / 2}, {reinterpret_cast<float*>(to.data), to.layout});
    return;
  }
  Floats block[kLanes];
  for (int64_t row = 0; row < size.rows; row += kLanes) {
    for (int64_t column = 0; column < size.columns; column += kLanes) {
      load_transposed(from.data + from.layout.offset(row, column), from.layout.row, block);
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; i += 2) {
        if (pairs) {
          store_pair(to, column + i, row, block[i], block[i + 1]);
        } else {
          store(to.data + to.layout.offset(column + i, row), block[i]);
          store(to.data + to.layout.offset(column + i + 1, row), block[i + 1]);
        }
      }
    }
  }
}

template <typename Number>
void pair_rows(const Matrix<const Number>& from, const Size& size, Number* to) {
  for (int64_t row = 0; row < size.rows; row += 2) {
    const Number *first = from.data + row * from.layout.row, *second = first + from.layout.row;
    for (int64_t column = 0; column < size.columns; column += kLanes) {
      store_pair(Matrix<Number>{to, in_rows(size.columns)}, row, column, load(first + column), load(second + column));
    }
  }
}

constexpr int64_t kStripColumns = kColumns;

// What all rows of a tile are asked: nothing is hidden or dropped. Then a loop needs no more than its numbers.
bool is_plain(const Tile& tile, const Visible* visible) {
  const auto sees_all = [&](const Visible& columns) { return columns.begin == 0 && columns.end >= tile.columns; };
  return !tile.dropout.keys && !tile.real_keys && std::all_of(visible, visible + tile.rows, sees_all);
}

// function(first, width): some columns at a time. In panels, so few that what lies one after the other in memory is
// passed through in that order: across a whole row each sixteen columns lie on another page.
template <typename Function>
inline void for_each_strip(const Tile& tile, Function function) {
  const int64_t most = tile.layout.row == kColumns ? kStripColumns : tile.columns;
  for (int64_t first = 0; first < tile.columns; first += most) {
    function(first, smaller(most, tile.columns - first));
  }
}

// Sums of h(x), and of h(x) log h(x), of each row.
struct Sums {
  Floats weights[kQueries], logs[kQueries];
};

// kStatistics: 0 none, 1 sums of h(x), 2 of the logarithms too
template <typename H, int kStatistics, bool kPlain, typename Number>
void weigh_strip(const Tile& tile, int64_t first, int64_t width, const Visible* visible, const float* scores,
                 Number* weights, Sums& sums) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    int64_t offset = tile.layout.offset(row, first);
    Floats sum = kStatistics > 0 ? sums.weights[row] : broadcast(0.0f),
           sum_log = kStatistics > 1 ? sums.logs[row] : broadcast(0.0f);
    for (int64_t panel = first; panel < first + width; panel += kColumns, offset += tile.layout.panel) {
      if (!kPlain && (panel >= visible[row].end || panel + kColumns <= visible[row].begin)) {
        std::memset(static_cast<void*>(weights + offset), 0, kColumns * sizeof(Number));
        continue;
      }
#pragma GCC unroll 4
      for (int part = 0; part < kColumns; part += kLanes) {
        const int64_t column = panel + part;
        Floats weight = H::value(load(scores + offset + part) * tile.scale);
        if constexpr (!kPlain) {
          weight = hide(tile, weight, column, visible[row]);
        }
        if constexpr (kStatistics > 0) {
          sum += weight;
        }
        if constexpr (kStatistics > 1) {
          sum_log += weight * logarithm<false>(weight);
        }
        if (!kPlain && tile.dropout.keys) {
          weight *= dropout_factors(tile.dropout, tile.dropout.keys[row], tile.first_column + column);
        }
        store(weights + offset + part, weight);
      }
    }
    if constexpr (kStatistics > 0) {
      sums.weights[row] = sum;
    }
    if constexpr (kStatistics > 1) {
      sums.logs[row] = sum_log;
    }
  }
}

template <typename H, int kStatistics, typename Number>
void weigh_tile(const Tile& tile, const float* scores, Number* weights, float* sums, float* sums_log) {
  Visible visible[kQueries];
  Sums of_rows;
  for (int64_t row = 0; row < tile.rows; ++row) {
    visible[row] = visible_columns(tile, row);
  }
  std::fill_n(of_rows.weights, kStatistics > 0 ? tile.rows : 0, broadcast(0.0f));
  std::fill_n(of_rows.logs, kStatistics > 1 ? tile.rows : 0, broadcast(0.0f));
  const bool plain = is_plain(tile, visible);
  for_each_strip(tile, [&](int64_t first, int64_t width) {
    if (plain) {
      weigh_strip<H, kStatistics, true>(tile, first, width, visible, scores, weights, of_rows);
    } else {
      weigh_strip<H, kStatistics, false>(tile, first, width, visible, scores, weights, of_rows);
    }
  });
  for (int64_t row = 0; row < tile.rows; ++row) {
    if (kStatistics > 0 && visible[row].end) {
      sums[row] += sum_of(of_rows.weights[row]);
    }
    if (kStatistics > 1 && visible[row].end) {
      sums_log[row] += sum_of(of_rows.logs[row]);
    }
  }
}

template <typename H, typename Number>
void weigh(const Tile& tile, const float* scores, Number* weights, float* sums, float* sums_log) {
  if (sums_log) {
    weigh_tile<H, 2>(tile, scores, weights, sums, sums_log);
  } else if (sums) {
    weigh_tile<H, 1>(tile, scores, weights, sums, sums_log);
  } else {
    weigh_tile<H, 0>(tile, scores, weights, sums, sums_log);
  }
}

struct RowGain {
  float rho, tau;
  uint32_t key;
  Visible visible;
};

// One vector of one row: the gradient of the products and the dropped weights.
template <typename H, bool kPlain>
inline void differentiate_vector(const Tile& tile, const RowGain& row, Floats x, Floats g, int64_t column,
                                 Floats& gradient, Floats& weight) {
  Floats u = H::value(x), factors = broadcast(1.0f);
  if (!kPlain && tile.dropout.keys) {
    factors = dropout_factors(tile.dropout, row.key, tile.first_column + column);
    g *= factors;
  }
  g += row.rho;
  if (row.tau != 0.0f) {
    g += row.tau * logarithm<true>(u);
  }
  gradient = H::chain(x, u, g) * tile.scale;
  weight = u;
  if constexpr (!kPlain) {
    gradient = hide(tile, gradient, column, row.visible);
    weight = hide(tile, u * factors, column, row.visible);
  }
}

template <typename H, bool kPlain, typename Number>
void differentiate_strip(const Tile& tile, int64_t begin, int64_t width, const RowGain* gains, const float* scores,
                         const float* gradients, Number* weights, Number* rows, Number* pairs) {
  const Matrix<Number> to_weights{weights, tile.layout}, to_pairs{pairs, tile.layout};
  for (int64_t row = 0; row < tile.rows; row += 2) {
    const RowGain &first = gains[row], &second = gains[row + 1];
    const int64_t seen_from = smaller(first.visible.begin, second.visible.begin);
    const int64_t seen_to = first.visible.end < second.visible.end ? second.visible.end : first.visible.end;
    for (int64_t column = begin; column < begin + width; column += kLanes) {
      const int64_t offset = tile.layout.offset(row, column), next = offset + tile.layout.row;
      Floats gradient[2] = {}, weight[2] = {};
      if (kPlain || (column < seen_to && column + kLanes > seen_from)) {
        const Floats x[2] = {load(scores + offset) * tile.scale, load(scores + next) * tile.scale};
        const Floats g[2] = {load(gradients + offset), load(gradients + next)};
        differentiate_vector<H, kPlain>(tile, first, x[0], g[0], column, gradient[0], weight[0]);
        differentiate_vector<H, kPlain>(tile, second, x[1], g[1], column, gradient[1], weight[1]);
      }
      store_pair(to_weights, row, column, weight[0], weight[1]);
      store_pair(to_pairs, row, column, gradient[0], gradient[1]);
      if (rows != pairs) {
        store(rows + offset, gradient[0]);
        store(rows + next, gradient[1]);
      }
    }
  }
}

template <typename H, typename Number>
void differentiate(const Tile& tile, const float* scores, const float* gradients, const float* rho, const float* tau,
                   Number* weights, Number* rows, Number* pairs) {
  RowGain gains[kQueries];
  Visible visible[kQueries];
  for (int64_t row = 0; row < tile.rows; ++row) {
    visible[row] = visible_columns(tile, row);
    gains[row] = {rho[row], tau[row], tile.dropout.keys ? tile.dropout.keys[row] : 0, visible[row]};
  }
  const bool plain = is_plain(tile, visible);
  for_each_strip(tile, [&](int64_t first, int64_t width) {
    if (plain) {
      differentiate_strip<H, true>(tile, first, width, gains, scores, gradients, weights, rows, pairs);
    } else {
      differentiate_strip<H, false>(tile, first, width, gains, scores, gradients, weights, rows, pairs);
    }
  });
}

// Some numbers of a row, to a tensor.
template <typename Scalar>
inline void write_numbers(const float* values, float factor, int64_t count, Scalar* to) {
  int64_t column = 0;
  for (; column + kLanes <= count; column += kLanes) {
    store(to + column, load(values + column) * factor);
  }
  for (; column < count; ++column) {
    narrow(to + column, values[column] * factor);
  }
}

template <typename Scalar>
void write_rows(const Matrix<const float>& values, const float* factors, const Size& size, const Matrix<Scalar>& to) {
  for (int64_t row = 0; row < size.rows; ++row) {
    for_each_panel(size.columns, [&](int64_t column, int64_t count) {
      const float* from = values.data + values.layout.offset(row, column);
      write_numbers(from, factors ? factors[row] : 1.0f, count, to.data + row * to.layout.row + column);
    });
  }
}

template <typename Scalar>
void write_transposed(const Matrix<const float>& values, const Size& size, const Matrix<Scalar>& to) {
  Floats block[kLanes];
  for (int64_t row = 0; row < size.rows; row += kLanes) {
    const int64_t count = smaller(kLanes, size.rows - row);
    for (int64_t column = 0; column < size.columns; column += kLanes) {
      load_transposed(values.data + values.layout.offset(column, row), values.layout.row, block);
      Scalar* target = to.data + row * to.layout.row + column;
      if (count == kLanes && column + kLanes <= size.columns) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          store(target + i * to.layout.row, block[i]);
        }
        continue;
      }
      for (int64_t i = 0; i < count; ++i) {
        write_numbers(reinterpret_cast<const float*>(block + i), 1.0f, smaller(kLanes, size.columns - column),
                      target + i * to.layout.row);
      }
    }
  }
}

template <typename Scalar, typename Number>
void scale_rows(const Matrix<const Scalar>& from, const Size& size, const float* factors, const Matrix<Number>& to,
                const Size& padded) {
  copy_rows(from, size, nullptr, to, padded);
  for (int64_t row = 0; factors && row < size.rows; ++row) {
    for (int64_t column = 0; column < padded.columns; column += kLanes) {
      Number* numbers = to.data + to.layout.offset(row, column);
      store(numbers, load(numbers) * factors[row]);
    }
  }
}

// The products of a query with `count` keys, at most kLanes, whose sums are taken together: one by one they cost more
// than the products.
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

// Adds weights[j] · row j of the values to the output; of no key but padding is the value left out, as in a product of
// matrices, in which zero times NaN is NaN.
template <int kVectors, typename Scalar>
void add_values(const float* weights, const Scalar* values, int64_t stride, int64_t visible, const bool* real,
                float* output) {
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
void attend_row(const Tile& tile, const Row<Scalar>& row, float* weights, float* output, float* sums, float* sums_log) {
  const int64_t visible = visible_columns(tile, 0).end, key_stride = row.keys.layout.row,
                value_stride = row.values.layout.row;
  for (int64_t j = 0; j < visible; j += kLanes) {
    store(weights + j,
          dots(row.query, row.keys.data + j * key_stride, key_stride, smaller(kLanes, visible - j), row.dims));
  }
  for (int64_t j = 0; row.real && j < visible; ++j) {
    weights[j] = row.real[j] ? weights[j] : 0.0f;
  }
  Tile alone = tile;
  alone.rows = 1;
  alone.columns = round_up(visible, kColumns);
  alone.layout = in_rows(alone.columns);
  weigh<H, float>(alone, weights, weights, sums, sums_log);
  int64_t i = 0;
  for (; i + 4 * kLanes <= row.dims_v; i += 4 * kLanes) {
    add_values<4>(weights, row.values.data + i, value_stride, visible, row.real, output + i);
  }
  for (; i + kLanes <= row.dims_v; i += kLanes) {
    add_values<1>(weights, row.values.data + i, value_stride, visible, row.real, output + i);
  }
  for (; i < row.dims_v; ++i) {
    output[i] = 0.0f;
    for (int64_t j = 0; j < visible; ++j) {
      output[i] += row.real && !row.real[j] ? 0.0f : weights[j] * widen(row.values.data[j * value_stride + i]);
    }
  }
}

#ifdef __AVX512F__
constexpr void (*kMultiply)(const Product<float>&) = nullptr;
#else
constexpr void (*kMultiply)(const Product<float>&) = multiply;
#endif

template <typename Scalar, typename Number>
constexpr Kernels<Scalar, Number> kernels_of() {
#define RELUFORMER_WEIGH(H, name, closed_at_zero) weigh<H, Number>,
#define RELUFORMER_DIFFERENTIATE(H, name, closed_at_zero) differentiate<H, Number>,
#define RELUFORMER_ATTEND_ROW(H, name, closed_at_zero) attend_row<H, Scalar>,
  return {kMultiply,
          copy_rows<Scalar, Number>,
          scale_rows<Scalar, Number>,
          transpose<Number>,
          pair_rows<Number>,
          {RELUFORMER_ACTIVATIONS(RELUFORMER_WEIGH)},
          {RELUFORMER_ACTIVATIONS(RELUFORMER_DIFFERENTIATE)},
          write_rows<Scalar>,
          write_transposed<Scalar>,
          {RELUFORMER_ACTIVATIONS(RELUFORMER_ATTEND_ROW)}};
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
