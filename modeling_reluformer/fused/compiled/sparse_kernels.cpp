// The kernels of sparse_kernels.h for one instruction set, RELUFORMER_ISA: avx2 or avx512.
#include "sparse_kernels.h"

#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "vectors.h"

namespace reluformer {
namespace {

typedef int8_t Bytes __attribute__((vector_size(kLanes)));
typedef int16_t Shorts __attribute__((vector_size(2 * kLanes)));

// Neurons that are computed side by side share the loads of x, and hide the latency of a sum.
constexpr int kNeurons = 4;
// Rows of x that share the loads of weights: as many as there are registers for their sums.
#ifdef __AVX512F__
constexpr int kRows = 4;
#else
constexpr int kRows = 2;
#endif
constexpr int64_t kRowsAtOnce = 8;

inline Floats load(const int8_t* place) {
  // In steps of twice the width, for which there are instructions.
  return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(vector_at<Bytes>(place), Shorts), Ints), Floats);
}

inline float widen(int8_t value) {
  return value;
}

template <int N, int R>
using Sums = float[N][R];

// Asks for what the next call reads at this place, a line at a time: rows of weights are too short, and those of active neurons
// too far apart, for the processor to foresee them.
template <int N, typename Weight>
inline void prefetch(const Weight* const* next, int64_t i) {
  if (next && i % (64 / static_cast<int64_t>(sizeof(Weight))) == 0) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      __builtin_prefetch(next[n] + i);
    }
  }
}

// Products of N rows of weights and R rows of x. Loops over them are unrolled, without which their sums would not be in registers. Each type of weights has the form of x that it is quickest with.
template <int N, int R, typename Weight>
inline void dot(const Weight* const* weights, const Weight* const* next, const Rows& x, int64_t row, Sums<N, R>& sums) {
  Floats total[N][R] = {};
  const float* from = x.wide + row * x.stride;
  int64_t i = 0;
  for (; i + kLanes <= x.dims; i += kLanes) {
    prefetch<N>(next, i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Floats value = load(from + r * x.stride + i);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        total[n][r] += value * load(weights[n] + i);
      }
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float sum = sum_of(total[n][r]);
      for (int64_t j = i; j < x.dims; ++j) {
        sum += widen(weights[n][j]) * from[r * x.stride + j];
      }
      sums[n][r] = sum;
    }
  }
}

#ifdef __AVX512BF16__
template <int N, int R>
inline void dot(const BFloat16* const* weights, const BFloat16* const* next, const Rows& x, int64_t row, Sums<N, R>& sums) {
  __m512 total[N][R];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      total[n][r] = _mm512_setzero_ps();
    }
  }
  const BFloat16* from = x.narrow + row * x.stride;
  int64_t i = 0;
  auto step = [&](__mmask32 mask) {
    __m512i part[N];
    prefetch<N>(next, i);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      part[n] = _mm512_maskz_loadu_epi16(mask, weights[n] + i);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512bh value = (__m512bh)_mm512_loadu_si512(from + r * x.stride + i);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        total[n][r] = _mm512_dpbf16_ps(total[n][r], value, (__m512bh)part[n]);
      }
    }
  };
  for (; i + 32 <= x.dims; i += 32) {
    step(~__mmask32{0});
  }
  if (i < x.dims) {
    step((__mmask32{1} << (x.dims - i)) - 1);
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      sums[n][r] = sum_of(reinterpret_cast<Floats>(total[n][r]));
    }
  }
}
#endif

// Exact in integers, and so the same on every processor. Bytes of x are 128 too large, which is taken back as 128 · Σ w.
template <int N, int R>
inline void dot(const int8_t* const* weights, const int8_t* const* next, const Rows& x, int64_t row, Sums<N, R>& sums) {
  int32_t whole[N][R] = {};
  const uint8_t* from = x.bytes + row * x.stride;
  int64_t i = 0;
#if defined(__AVX512VNNI__)
  __m512i total[N][R], excess[N];
  const __m512i shift = _mm512_set1_epi8(static_cast<char>(128));
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    excess[n] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      total[n][r] = _mm512_setzero_si512();
    }
  }
  auto step = [&](__mmask64 mask) {
    __m512i part[N];
    prefetch<N>(next, i);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      part[n] = _mm512_maskz_loadu_epi8(mask, weights[n] + i);
      excess[n] = _mm512_dpbusd_epi32(excess[n], shift, part[n]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512i value = _mm512_loadu_si512(from + r * x.stride + i);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        total[n][r] = _mm512_dpbusd_epi32(total[n][r], value, part[n]);
      }
    }
  };
  for (; i + 64 <= x.dims; i += 64) {
    step(~__mmask64{0});
  }
  if (i < x.dims) {
    step((__mmask64{1} << (x.dims - i)) - 1);
    i = x.dims;
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      whole[n][r] = sum_of(reinterpret_cast<Ints>(total[n][r]) - reinterpret_cast<Ints>(excess[n]));
    }
  }
#else
  __m256i total[N][R];
  const __m256i shift = _mm256_set1_epi16(128);
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      total[n][r] = _mm256_setzero_si256();
    }
  }
  for (; i + 16 <= x.dims; i += 16) {
    prefetch<N>(next, i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + r * x.stride + i)));
      const __m256i value = _mm256_sub_epi16(bytes, shift);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const __m256i weight = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights[n] + i)));
        total[n][r] = _mm256_add_epi32(total[n][r], _mm256_madd_epi16(value, weight));
      }
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      int32_t lanes[8];
      std::memcpy(lanes, &total[n][r], sizeof lanes);
      for (int32_t lane : lanes) {
        whole[n][r] += lane;
      }
    }
  }
#endif
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      for (int64_t j = i; j < x.dims; ++j) {
        whole[n][r] += (from[r * x.stride + j] - 128) * weights[n][j];
      }
      sums[n][r] = static_cast<float>(whole[n][r]) * x.scales[row + r];
    }
  }
}

template <int N, int R, typename Weight>
inline void dot_rows(const Weight* const* weights, const Weight* const* next, const Rows& x, int64_t row, float* to, int64_t row_stride) {
  Sums<N, R> sums;
  dot<N, R>(weights, next, x, row, sums);
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      to[r * row_stride + n] = sums[n][r];
    }
  }
}

// Products of N rows of weights and the rows of [row, end) of x → to[(row - first row) · row_stride + n]. next: the rows of weights
// of the next call, or null.
template <int N, int R = kRows, typename Weight>
inline void dot_all(const Weight* const* weights, const Weight* const* next, const Rows& x, int64_t row, int64_t end, float* to, int64_t row_stride) {
  for (; row + R <= end; row += R, to += R * row_stride, next = nullptr) {
    dot_rows<N, R>(weights, next, x, row, to, row_stride);
  }
  if constexpr (R > 1) {
    dot_all<N, R - 1>(weights, next, x, row, end, to, row_stride);
  }
}

inline float activate(int64_t activation, float value) {
  if (activation == kPlain) {
    return value;
  }
  const float positive = value <= 0.0f ? 0.0f : value;  // NaN stays
  if (activation == kFFNRelu2) {
    return positive * positive;
  }
  return activation == kFFNRelu6 && positive > 6.0f ? 6.0f : positive;
}

// Scale, bias and activation of a neuron's product with a row.
template <typename Weight>
inline float finished(const Neurons<Weight>& neurons, int64_t neuron, int64_t activation, float product) {
  product = neurons.scales ? product * neurons.scales[neuron] : product;
  product = neurons.biases ? product + neurons.biases[neuron] : product;
  return activate(activation, product);
}

template <typename Weight>
void project(const Neurons<Weight>& neurons, const Rows& x, int64_t begin, int64_t end, int64_t activation, float* to, int64_t stride) {
  int64_t neuron = begin;
  const Weight *rows[kNeurons], *next[kNeurons];
  for (; neuron + kNeurons <= end; neuron += kNeurons) {
    for (int n = 0; n < kNeurons; ++n) {
      rows[n] = neurons.weights + (neuron + n) * x.dims;
      next[n] = rows[n] + kNeurons * x.dims;
    }
    dot_all<kNeurons>(rows, neuron + 2 * kNeurons <= end ? next : nullptr, x, 0, x.count, to + neuron - begin, stride);
  }
  for (; neuron < end; ++neuron) {
    rows[0] = neurons.weights + neuron * x.dims;
    dot_all<1>(rows, static_cast<const Weight* const*>(nullptr), x, 0, x.count, to + neuron - begin, stride);
  }
  for (int64_t row = 0; row < x.count; ++row, to += stride) {
    for (int64_t i = 0; i < end - begin; ++i) {
      to[i] = finished(neurons, begin + i, activation, to[i]);
    }
  }
}

// y += Σ_n factors[n] · weights[n]
template <int N, typename Weight>
inline void add(const Weight* const* weights, const Weight* const* next, const float* factors, int64_t dims, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= dims; i += kLanes) {
    prefetch<N>(next, i);
    Floats sum = load(y + i);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      sum += factors[n] * load(weights[n] + i);
    }
    store(y + i, sum);
  }
  for (; i < dims; ++i) {
    for (int n = 0; n < N; ++n) {
      y[i] += factors[n] * widen(weights[n][i]);
    }
  }
}

// The neurons of [0, count) of which some row is not zero, NaN among them.
int64_t list_active(const float* gates, int64_t rows, int64_t count, bool all, int32_t* active) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    bool is_active = all;
    for (int64_t row = 0; row < rows; ++row) {
      is_active |= gates[row * count + i] != 0.0f;
    }
    active[found] = static_cast<int32_t>(i);
    found += is_active;
  }
  return found;
}

// The rows of weights of N neurons of a part that begins at `begin`.
template <int N, typename Weight>
inline void rows_of(const Weight* weights, int64_t width, int64_t begin, const int32_t* neurons, const Weight** rows) {
  for (int n = 0; n < N; ++n) {
    rows[n] = weights + (begin + neurons[n]) * width;
  }
}

// Adds N active neurons to y. gates: (rows, count) activations of all neurons of this part; neurons: N numbers in it, with N more
// behind them if there is a next call.
template <int N, typename Weight>
void spend(const FeedForward<Weight>& ffn, const Rows& x, int64_t begin, const float* gates, int64_t count, const int32_t* neurons, bool has_next, float* y, int64_t y_stride) {
  const Weight *ups[N], *seconds[N], *next_ups[N], *next_seconds[N];
  const Weight* const* next = has_next ? next_seconds : nullptr;
  rows_of<N>(ffn.second.weights, ffn.outputs, begin, neurons, seconds);
  rows_of<N>(ffn.second.weights, ffn.outputs, begin, neurons + (has_next ? N : 0), next_seconds);
  if (ffn.up.weights) {
    rows_of<N>(ffn.up.weights, x.dims, begin, neurons, ups);
    rows_of<N>(ffn.up.weights, x.dims, begin, neurons + (has_next ? N : 0), next_ups);
  }
  float products[N * kRowsAtOnce];
  for (int64_t row = 0; row < x.count; ++row) {
    if (ffn.up.weights && row % kRowsAtOnce == 0) {
      const int64_t end = row + kRowsAtOnce < x.count ? row + kRowsAtOnce : x.count;
      dot_all<N>(ups, has_next && row == 0 ? next_ups : nullptr, x, row, end, products, N);
    }
    float factors[N];
    bool any = ffn.all_active;
    for (int n = 0; n < N; ++n) {
      float factor = gates[row * count + neurons[n]];
      if (ffn.up.weights) {
        factor *= finished(ffn.up, begin + neurons[n], ffn.up_activation, products[row % kRowsAtOnce * N + n]);
      }
      any |= factor != 0.0f;
      factors[n] = ffn.second.scales ? factor * ffn.second.scales[begin + neurons[n]] : factor;
    }
    if (any) {
      add<N>(seconds, next, factors, ffn.outputs, y + row * y_stride);
      next = nullptr;
    }
  }
}

template <typename Weight>
void feed_forward(const FeedForward<Weight>& ffn, const Rows& x, int64_t begin, int64_t end, float* room, float* y, int64_t y_stride) {
  const int64_t count = end - begin;
  float* gates = room;
  int32_t* active = reinterpret_cast<int32_t*>(room + x.count * count);
  if (ffn.first.weights) {
    project(ffn.first, x, begin, end, ffn.activation, gates, count);
  } else {
    for (int64_t row = 0; row < x.count; ++row) {
      std::memcpy(gates + row * count, ffn.hidden + row * ffn.hidden_stride + begin, count * sizeof(float));
    }
  }
  for (int64_t row = 0; row < x.count; ++row) {
    std::memset(y + row * y_stride, 0, ffn.outputs * sizeof(float));
  }
  const int64_t found = list_active(gates, x.count, count, ffn.all_active, active);
  int64_t place = 0;
  for (; place + kNeurons <= found; place += kNeurons) {
    spend<kNeurons>(ffn, x, begin, gates, count, active + place, place + 2 * kNeurons <= found, y, y_stride);
  }
  for (; place < found; ++place) {
    spend<1>(ffn, x, begin, gates, count, active + place, false, y, y_stride);
  }
}

void quantize(const Rows& x) {
  for (int64_t row = 0; row < x.count; ++row) {
    x.scales[row] = quantize_row(x.wide + row * x.stride, x.stride, x.bytes + row * x.stride);  // zeros lie behind the row
  }
}

}  // namespace

namespace RELUFORMER_ISA {
extern const SparseKernelSet sparse_kernels;
const SparseKernelSet sparse_kernels = {quantize, {feed_forward<float>, project<float>}, {feed_forward<BFloat16>, project<BFloat16>}, {feed_forward<int8_t>, project<int8_t>}};
}  // namespace RELUFORMER_ISA

}  // namespace reluformer
