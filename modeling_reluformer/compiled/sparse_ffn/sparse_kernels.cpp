// The kernels of sparse_kernels.h for one instruction set, RELUFORMER_ISA: avx2 or avx512, neon or dotprod.
#include "sparse_kernels.h"

#ifdef __aarch64__
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

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
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRows = 4;
#else
constexpr int kRows = 2;
#endif
constexpr int64_t kRowsAtOnce = 8;

inline Floats load(const int8_t* from) {
  // In steps of twice the width, for which there are instructions.
  return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(vector_at<Bytes>(from), Shorts), Ints),
                                 Floats);
}

inline float widen(int8_t value) { return value; }

template <int N, int R>
using Sums = float[N][R];

// Asks for what the next call reads at these addresses, a line at a time: rows of weights are too short, and those of
// active neurons too far apart, for the processor to foresee them.
template <int N, typename Weight>
inline void prefetch(const Weight* const* next, int64_t i) {
  if (next && i % (64 / static_cast<int64_t>(sizeof(Weight))) == 0) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      __builtin_prefetch(next[n] + i);
    }
  }
}

// How weights of a type are multiplied, kStep at a time: with the form of x that they are quickest with.
template <typename Weight>
struct Products {
  typedef Floats Part;
  typedef Floats Total;
  static constexpr int64_t kStep = kLanes;
  static const float* rows(const InputRows& x) { return x.wide; }
  static Part part_of_x(const float* from) { return load(from); }
  static Part part(const Weight* from) { return load(from); }
  static Total add(Total total, Part x, Part weights) { return total + x * weights; }
  static float sum(Total total, Total, float) { return sum_of(total); }
};

#ifdef __AVX512BF16__
template <>
struct Products<BFloat16> {
  typedef __m512i Part;
  typedef __m512 Total;
  static constexpr int64_t kStep = 32;
  static const BFloat16* rows(const InputRows& x) { return x.narrow; }
  static Part part_of_x(const BFloat16* from) { return part(from); }
  static Part part(const BFloat16* from) { return _mm512_loadu_si512(from); }
  static Total add(Total total, Part x, Part weights) {
    return _mm512_dpbf16_ps(total, (__m512bh)x, (__m512bh)weights);
  }
  static float sum(Total total, Total, float) { return sum_of(reinterpret_cast<Floats>(total)); }
};
#endif

// Exact in integers, and so the same on every processor.
#if defined(__AVX512VNNI__)
template <>
struct Products<int8_t> {
  typedef __m512i Part;
  typedef __m512i Total;
  static constexpr int64_t kStep = 64;
  static constexpr bool kIsShifted = true;  // bytes of x are 128 too large, which is taken back as 128 · Σ w
  static const uint8_t* rows(const InputRows& x) { return x.bytes; }
  static Part part_of_x(const uint8_t* from) { return _mm512_loadu_si512(from); }
  static Part shift() { return _mm512_set1_epi8(static_cast<char>(128)); }
  static Part part(const int8_t* from) { return _mm512_loadu_si512(from); }
  static Total add(Total total, Part x, Part weights) { return _mm512_dpbusd_epi32(total, x, weights); }
  static float sum(Total total, Total excess, float scale) {
    return static_cast<float>(sum_of(reinterpret_cast<Ints>(total) - reinterpret_cast<Ints>(excess))) * scale;
  }
};
#elif defined(__aarch64__)
template <>
struct Products<int8_t> {
  typedef int8x16_t Part;
  typedef int32x4_t Total;
  static constexpr int64_t kStep = 16;
  static const uint8_t* rows(const InputRows& x) { return x.bytes; }
  static Part part_of_x(const uint8_t* from) { return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from), vdupq_n_u8(128))); }
  static Part part(const int8_t* from) { return vld1q_s8(from); }
  static Total add(Total total, Part x, Part weights) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(total, x, weights);
#else
    total = vpadalq_s16(total, vmull_s8(vget_low_s8(x), vget_low_s8(weights)));
    return vpadalq_s16(total, vmull_high_s8(x, weights));
#endif
  }
  static float sum(Total total, Total, float scale) {
    return static_cast<float>(sum_of(reinterpret_cast<Ints>(total))) * scale;
  }
};
#else
template <>
struct Products<int8_t> {
  typedef __m256i Part;  // in 16 bits each
  typedef __m256i Total;
  static constexpr int64_t kStep = 16;
  static const uint8_t* rows(const InputRows& x) { return x.bytes; }
  static __m128i bytes(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static Part part_of_x(const uint8_t* from) {
    return _mm256_sub_epi16(_mm256_cvtepu8_epi16(bytes(from)), _mm256_set1_epi16(128));
  }
  static Part part(const int8_t* from) { return _mm256_cvtepi8_epi16(bytes(from)); }
  static Total add(Total total, Part x, Part weights) { return _mm256_add_epi32(total, _mm256_madd_epi16(x, weights)); }
  static float sum(Total total, Total, float scale) {
    return static_cast<float>(sum_of(reinterpret_cast<Ints>(total))) * scale;
  }
};
#endif

// Products of N rows of weights and R rows of x. Loops over them are unrolled, without which their sums would not be in
// registers.
template <int N, int R, typename Weight>
inline void dot(const Weight* const* weights, const Weight* const* next, const InputRows& x, int64_t row,
                Sums<N, R>& sums) {
  using P = Products<Weight>;
  constexpr bool kIsShifted = requires { P::kIsShifted; };
  typename P::Total total[N][R] = {}, excess[N] = {};
  const auto* from = P::rows(x) + row * x.stride;
  auto step = [&](const Weight* const* rows, int64_t offset, int64_t i) {
    typename P::Part values[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      values[r] = P::part_of_x(from + r * x.stride + i);
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const auto part = P::part(rows[n] + offset);
      if constexpr (kIsShifted) {
        excess[n] = P::add(excess[n], P::shift(), part);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        total[n][r] = P::add(total[n][r], values[r], part);
      }
    }
  };
  int64_t i = 0;
  for (; i + P::kStep <= x.dims; i += P::kStep) {
    prefetch<N>(next, i);
    step(weights, i, i);
  }
  if (i < x.dims) {  // with zeros after the weights, as after x
    Weight rest[N][P::kStep] = {};
    const Weight* rests[N];
    for (int n = 0; n < N; ++n) {
      rests[n] = static_cast<const Weight*>(
          std::memcpy(static_cast<void*>(rest[n]), weights[n] + i, (x.dims - i) * sizeof(Weight)));
    }
    step(rests, 0, i);
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      sums[n][r] = P::sum(total[n][r], excess[n], x.scales ? x.scales[row + r] : 1.0f);
    }
  }
}

template <int N, int R, typename Weight>
inline void dot_rows(const Weight* const* weights, const Weight* const* next, const InputRows& x, int64_t row,
                     float* to, int64_t row_stride) {
  Sums<N, R> sums;
  dot<N, R>(weights, next, x, row, sums);
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      to[r * row_stride + n] = sums[n][r];
    }
  }
}

// Products of N rows of weights and the rows of [row, end) of x → to[(row - first row) · row_stride + n]. next: the
// rows of weights of the next call, or null.
template <int N, int R = kRows, typename Weight>
inline void dot_all(const Weight* const* weights, const Weight* const* next, const InputRows& x, int64_t row,
                    int64_t end, float* to, int64_t row_stride) {
  for (; row + R <= end; row += R, to += R * row_stride, next = nullptr) {
    dot_rows<N, R>(weights, next, x, row, to, row_stride);
  }
  if constexpr (R > 1) {
    dot_all<N, R - 1>(weights, next, x, row, end, to, row_stride);
  }
}

inline float activate(int64_t activation, float value) {
  if (activation == kFFNIdentity) {
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
void project(const Neurons<Weight>& neurons, const InputRows& x, int64_t begin, int64_t end, int64_t activation,
             float* to, int64_t stride) {
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
  int64_t active_count = 0;
  for (int64_t i = 0; i < count; ++i) {
    bool is_active = all;
    for (int64_t row = 0; row < rows; ++row) {
      is_active |= gates[row * count + i] != 0.0f;
    }
    active[active_count] = static_cast<int32_t>(i);
    active_count += is_active;
  }
  return active_count;
}

// The rows of weights of N neurons of a part that begins at `begin`.
template <int N, typename Weight>
inline void rows_of(const Weight* weights, int64_t width, int64_t begin, const int32_t* neurons, const Weight** rows) {
  for (int n = 0; n < N; ++n) {
    rows[n] = weights + (begin + neurons[n]) * width;
  }
}

// Adds N active neurons to y. gates: (rows, count) activations of all neurons of this part; neurons: N numbers in it,
// with N more after them if there is a next call.
template <int N, typename Weight>
void spend(const FeedForward<Weight>& ffn, const InputRows& x, int64_t begin, const float* gates, int64_t count,
           const int32_t* neurons, bool has_next, float* y, int64_t y_stride) {
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
void feed_forward(const FeedForward<Weight>& ffn, const InputRows& x, int64_t begin, int64_t end, float* room, float* y,
                  int64_t y_stride) {
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
  const int64_t active_count = list_active(gates, x.count, count, ffn.all_active, active);
  int64_t index = 0;
  for (; index + kNeurons <= active_count; index += kNeurons) {
    spend<kNeurons>(ffn, x, begin, gates, count, active + index, index + 2 * kNeurons <= active_count, y, y_stride);
  }
  for (; index < active_count; ++index) {
    spend<1>(ffn, x, begin, gates, count, active + index, false, y, y_stride);
  }
}

void quantize(const InputRows& x) {
  for (int64_t row = 0; row < x.count; ++row) {
    x.scales[row] = quantize_row(x.wide + row * x.stride, x.stride, x.bytes + row * x.stride);  // zeros follow the row
  }
}

}  // namespace

namespace RELUFORMER_ISA {
extern const SparseKernelSet sparse_kernels;
const SparseKernelSet sparse_kernels = {quantize,
                                        {feed_forward<float>, project<float>},
                                        {feed_forward<BFloat16>, project<BFloat16>},
                                        {feed_forward<int8_t>, project<int8_t>}};
}  // namespace RELUFORMER_ISA

}  // namespace reluformer
