// The kernels of translation_kernels.h for one instruction set, RELUFORMER_ISA: avx2 or avx512, neon or dotprod.
#include "translation_kernels.h"

#ifdef __aarch64__
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

// Compilers before these know no AMX.
#if defined(__AVX512VNNI__) && defined(__linux__) && \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define RELUFORMER_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "product.h"
#include "vectors.h"

namespace reluformer {
namespace {

// How a function of the numbers of a row reads them: a register at a time, of which the last may hold fewer, and zeros
// after them.
struct Read {
  int64_t count;
  Floats operator()(const float* from) const { return first<Floats>(from); }
  Ints operator()(const int32_t* from) const { return first<Ints>(from); }

 private:
  template <typename Vector, typename Number>
  Vector first(const Number* from) const {
    Vector result{};
    std::memcpy(&result, from, count * sizeof *from);
    return result;
  }
};

// to[i] = value(read, i)
template <typename Function>
inline void write(float* to, int64_t width, Function value) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    store(to + i, value(Read{kLanes}, i));
  }
  if (i < width) {
    const Floats rest = value(Read{width - i}, i);
    std::memcpy(to + i, &rest, (width - i) * sizeof *to);
  }
}

// Σ value(read, i), as sixteen sums and the rest: in an order that is the same with every instruction set.
template <typename Function>
inline float sum_over(int64_t width, Function value) {
  constexpr int kSums = 16 / kLanes;
  Floats sums[kSums] = {};
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) {
#pragma GCC unroll 4
    for (int part = 0; part < kSums; ++part) {
      sums[part] += value(Read{kLanes}, i + part * kLanes);
    }
  }
  Floats total = sums[0];
  if constexpr (kSums == 2) {
    total = sums[0] + sums[1];
  } else if constexpr (kSums == 4) {
    total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  }
  float sum = sum_of(total);
  for (; i < width; i += kLanes) {
    const Floats rest = value(Read{std::min<int64_t>(kLanes, width - i)}, i);
    for (int64_t lane = 0; lane < std::min<int64_t>(kLanes, width - i); ++lane) {
      sum += rest[lane];
    }
  }
  return sum;
}

void weigh(float* scores, int64_t width, const Weighing& weighing) {
  if (weighing.activation != kDecodingSoftmax) {
    const bool squared = weighing.activation == kDecodingRelu2;
    for (int64_t t = 0; t < width; ++t) {
      const float scaled = scores[t] * weighing.scale, positive = scaled <= 0.0f ? 0.0f : scaled;  // a NaN stays one
      scores[t] = positive * (squared ? positive * weighing.row_scale : weighing.row_scale);
    }
    return;
  }
  for (int64_t t = 0; t < width; ++t) {
    scores[t] *= weighing.scale;
  }
  const float most = *std::max_element(scores, scores + width);
  write(scores, width, [&](auto read, int64_t t) { return exponential(read(scores + t) - most); });
  float sum = 0.0f;
  for (int64_t t = 0; t < width; ++t) {
    sum += scores[t];
  }
  const float factor = 1.0f / sum;
  for (int64_t t = 0; t < width; ++t) {
    scores[t] *= factor;
  }
}

void attend(const Cached& call, const Weighing& weighing, float* room, float* output) {
  auto offset = [&](int64_t t) { return t * call.position + call.cache_rows[t * call.cache_rows_stride] * call.row; };
  for (int64_t t = 0; t < call.length; ++t) {
    const float* key = call.keys + offset(t);
    room[t] = sum_over(call.dims, [&](auto read, int64_t i) { return read(call.query + i) * read(key + i); });
  }
  weigh(room, call.length, weighing);
  std::fill_n(output, call.dims, 0.0f);
  for (int64_t t = 0; t < call.length; ++t) {
    if (room[t] != 0.0f) {
      const float* values = call.values + offset(t);
      write(output, call.dims, [&](auto read, int64_t i) { return read(output + i) + room[t] * read(values + i); });
    }
  }
}

template <int N>
using Count = std::integral_constant<int, N>;

// function(R, B, row, block) for all rows of the blocks that follow, kMost rows at a time and fewer at the end
template <int kMost, int kBlocks, typename Function>
void for_blocks(int64_t count, int64_t& block, int64_t end, Function function) {
  auto for_rows = [&](auto self, auto most, int64_t row) -> void {
    for (; row + most <= count; row += most) {
      function(most, Count<kBlocks>(), row, block);
    }
    if constexpr (most > 1) {
      if (row < count) {
        self(self, Count<most - 1>(), row);
      }
    }
  };
  for (; block + kBlocks <= end; block += kBlocks) {
    for_rows(for_rows, Count<kMost>(), 0);
  }
}

// Rows that share a pass over the weights, and inputs of a panel that stays in the first cache until all of these rows
// have met it.
constexpr int64_t kRowsAtATime = 128, kInputsAtATime = 256;

void multiply_floats(const PackedFloats& matrix, const Matrix<const float>& from, int64_t count, int64_t begin,
                     int64_t end, float* to, int64_t to_stride) {
  if (count > kRowsAtATime) {
    const Matrix<const float> others{from.data + kRowsAtATime * from.layout.row, from.layout};
    multiply_floats(matrix, from, kRowsAtATime, begin, end, to, to_stride);
    multiply_floats(matrix, others, count - kRowsAtATime, begin, end, to + kRowsAtATime * to_stride, to_stride);
    return;
  }
  float sums[std::max<int64_t>(kRowsAtATime * kProductPanels, kProductRows * kMostPanels) * kOutputs];
  const int64_t most = count <= kProductRows ? kMostPanels : kProductPanels;
  for (int64_t block = begin; block < end; block += most) {
    const int64_t blocks = std::min(most, end - block);
    const Matrix<const float> weights{matrix.weights + block * kOutputs * matrix.inputs, in_panels(matrix.inputs)};
    Product<float> product{count, blocks * kOutputs, 0, from, weights, {sums, in_panels(count)}, false};
    for (int64_t first = 0; first < matrix.inputs; first += kInputsAtATime) {
      product.depth = std::min(kInputsAtATime, matrix.inputs - first);
      product.add = first > 0;
      multiply(product);
      product.a.data += from.layout.offset(0, kInputsAtATime);
      product.b.data += weights.layout.offset(kInputsAtATime, 0);
    }
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = (block + b) * kOutputs;
        const float* of_block = sums + product.c.layout.offset(row, b * kOutputs);
        write(to + row * to_stride + first, std::min(kOutputs, matrix.outputs - first), [&](auto read, int64_t n) {
          const auto sum = read(of_block + n);
          return matrix.biases ? sum + read(matrix.biases + first + n) : sum;
        });
      }
    }
  }
}

void quantize(const float* from, int64_t count, int64_t width, uint8_t* bytes, int64_t stride, float* scales) {
  for (int64_t row = 0; row < count; ++row, from += width, bytes += stride) {
    scales[row] = quantize_row(from, width, bytes);
    std::fill(bytes + width, bytes + stride, uint8_t{128});
  }
}

typedef int32_t Sums[kOutputs];

// Sums of sixteen outputs, and four weights of each. Integers: the same on every processor.
#if defined(__AVX512VNNI__)
typedef __m512i Totals;
typedef __m512i Weights;
constexpr bool kBytesAreShifted = true;  // by 128, which `finish` takes back
constexpr int kByteRows = 8, kByteBlocks = 2,
              kBlocksOfARow = 4;  // four sums at least, since each waits for the one before it

inline Weights load_weights(const int8_t* weights) { return _mm512_loadu_si512(weights); }

inline void add_products(Totals& totals, int32_t four, const Weights& weights) {
  totals = _mm512_dpbusd_epi32(totals, _mm512_set1_epi32(four), weights);
}
#elif defined(__aarch64__)
struct Totals {
  int32x4_t quarters[4];
};
struct Weights {
  int8x16_t quarters[4];
};
constexpr bool kBytesAreShifted = false;  // products are of signed bytes
constexpr int kByteRows = 4, kByteBlocks = 1, kBlocksOfARow = 2;

inline Weights load_weights(const int8_t* weights) {
  return {vld1q_s8(weights), vld1q_s8(weights + 16), vld1q_s8(weights + 32), vld1q_s8(weights + 48)};
}

inline void add_products(Totals& totals, int32_t four, const Weights& weights) {
  const int8x16_t value = vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_s32(vdupq_n_s32(four)), vdupq_n_u8(128)));
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
#ifdef __ARM_FEATURE_DOTPROD
    totals.quarters[part] = vdotq_s32(totals.quarters[part], weights.quarters[part], value);
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(weights.quarters[part]), vget_low_s8(value)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(weights.quarters[part], value));
    totals.quarters[part] = vaddq_s32(totals.quarters[part], vpaddq_s32(low, high));
#endif
  }
}
#else
struct Totals {
  __m256i halves[2];
};
struct Weights {
  __m256i even[2], odd[2];  // pairs in 16 bits each, without the saturation of vpmaddubsw
};
constexpr bool kBytesAreShifted = true;
constexpr int kByteRows = 4, kByteBlocks = 1, kBlocksOfARow = 1;

inline Weights load_weights(const int8_t* weights) {
  Weights result;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + half * 32));
    result.even[half] = _mm256_srai_epi16(_mm256_slli_epi16(part, 8), 8);
    result.odd[half] = _mm256_srai_epi16(part, 8);
  }
  return result;
}

inline void add_products(Totals& totals, int32_t four, const Weights& weights) {
  const __m256i value = _mm256_set1_epi32(four), even = _mm256_and_si256(value, _mm256_set1_epi16(255)),
                odd = _mm256_srli_epi16(value, 8);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i sum =
        _mm256_add_epi32(_mm256_madd_epi16(even, weights.even[half]), _mm256_madd_epi16(odd, weights.odd[half]));
    totals.halves[half] = _mm256_add_epi32(totals.halves[half], sum);
  }
}
#endif

// sums → outputs of one row and the block that begins at output `first`
inline void finish(const PackedBytes& matrix, const int32_t* sums, float scale, int64_t first, float* to) {
  const auto *scales = matrix.scales + first, *biases = matrix.biases + first;
  const int32_t* shifts = matrix.sums + first;
  write(to + first, std::min(kOutputs, matrix.outputs - first), [&](auto read, int64_t n) {
    const auto sum = kBytesAreShifted ? read(sums + n) - read(shifts + n) : read(sums + n);
    return __builtin_convertvector(sum, Floats) * (scale * read(scales + n)) + read(biases + n);
  });
}

// R rows and B neighbouring blocks of sixteen outputs
template <int R, int B>
void multiply_byte_rows(const PackedBytes& matrix, const uint8_t* bytes, int64_t stride, const float* scales,
                        int64_t block, float* to) {
  const int8_t* weights = matrix.weights + block * kOutputs * stride;
  Totals total[R][B] = {};
  for (int64_t i = 0; i < stride; i += kInputs) {
    Weights part[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      part[b] = load_weights(weights + (b * stride + i) * kOutputs);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, bytes + r * stride + i, sizeof four);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) {
        add_products(total[r][b], four, part[b]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    Sums sums[B];
    std::memcpy(sums, total[r], sizeof sums);
    for (int b = 0; b < B; ++b) {
      finish(matrix, sums[b], scales[r], (block + b) * kOutputs, to + r * matrix.outputs);
    }
  }
}

void multiply(const PackedBytes& matrix, const uint8_t* bytes, int64_t stride, const float* scales, int64_t count,
              int64_t begin, int64_t end, float* to) {
  auto multiply_rows = [&](auto rows, auto blocks, int64_t row, int64_t block) {
    multiply_byte_rows<rows, blocks>(matrix, bytes + row * stride, stride, scales + row, block,
                                     to + row * matrix.outputs);
  };
  if (count == 1) {
    for_blocks<1, kBlocksOfARow>(count, begin, end, multiply_rows);
  }
  for_blocks<kByteRows, kByteBlocks>(count, begin, end, multiply_rows);
  for_blocks<kByteRows, 1>(count, begin, end, multiply_rows);
}

#ifdef RELUFORMER_AMX
constexpr int64_t kTileRows = 16, kTileInputs = 256;

// Tiles of sixteen rows of 64 bytes.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Sixteen or (A = 2) thirty-two rows, and as many outputs.
template <int A, int B>
__attribute__((target("amx-tile,amx-int8"))) void multiply_tiles(const PackedBytes& matrix, const uint8_t* bytes,
                                                                 int64_t stride, const float* scales, int64_t block,
                                                                 float* to) {
  const int8_t* weights = matrix.weights + block * kOutputs * stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < stride; i += kDepth) {
    _tile_loadd(4, bytes + i, stride);
    _tile_loadd(6, weights + i * kOutputs, kDepth);
    _tile_dpbusd(0, 4, 6);
    if constexpr (B == 2) {
      _tile_loadd(7, weights + (stride + i) * kOutputs, kDepth);
      _tile_dpbusd(1, 4, 7);
    }
    if constexpr (A == 2) {
      _tile_loadd(5, bytes + kTileRows * stride + i, stride);
      _tile_dpbusd(2, 5, 6);
      if constexpr (B == 2) {
        _tile_dpbusd(3, 5, 7);
      }
    }
  }
  alignas(64) Sums sums[4][kTileRows];
  _tile_stored(0, sums[0], sizeof(Sums));
  _tile_stored(1, sums[1], sizeof(Sums));
  _tile_stored(2, sums[2], sizeof(Sums));
  _tile_stored(3, sums[3], sizeof(Sums));
  for (int64_t r = 0; r < A * kTileRows; ++r) {
    for (int b = 0; b < B; ++b) {
      finish(matrix, sums[r / kTileRows * 2 + b][r % kTileRows], scales[r], (block + b) * kOutputs,
             to + r * matrix.outputs);
    }
  }
}

__attribute__((target("amx-tile,amx-int8"))) void multiply_by_amx(const PackedBytes& matrix, const uint8_t* bytes,
                                                                  int64_t stride, const float* scales, int64_t count,
                                                                  int64_t begin, int64_t end, float* to) {
  // to store tiles takes longer than the products of few inputs
  const int64_t whole = stride < kTileInputs ? 0 : count / kTileRows * kTileRows;
  if (whole) {
    const TileShapes shapes;
    _tile_loadconfig(&shapes);
    for (int64_t block = begin; block < end; block += 2) {
      const bool both = block + 2 <= end;
      int64_t row = 0;
      auto call = [&](auto function, int64_t rows) {
        for (; row + rows <= whole; row += rows) {
          function(matrix, bytes + row * stride, stride, scales + row, block, to + row * matrix.outputs);
        }
      };
      call(both ? multiply_tiles<2, 2> : multiply_tiles<2, 1>, 2 * kTileRows);
      call(both ? multiply_tiles<1, 2> : multiply_tiles<1, 1>, kTileRows);
    }
    _tile_release();
  }
  if (whole < count) {
    multiply(matrix, bytes + whole * stride, stride, scales + whole, count - whole, begin, end,
             to + whole * matrix.outputs);
  }
}

// Whether the processor has AMX for bytes; Linux gives a process the tiles when it asks.
bool may_use_amx() {
  unsigned a, b, c, d;
  constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25;
  const bool exists = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTiles) && (d & kBytes);
  return exists && syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}
#endif

void add_and_norm(float* states, const float* updates, int64_t count, int64_t width, const float* weight,
                  const float* bias, float epsilon) {
  for (int64_t row = 0; row < count; ++row, states += width, updates += width) {
    for (int64_t i = 0; i < width; ++i) {
      states[i] += updates[i];
    }
    const float mean =
        sum_over(width, [&](auto read, int64_t i) { return read(states + i); }) / static_cast<float>(width);
    const float squares = sum_over(width, [&](auto read, int64_t i) {
      const auto difference = read(states + i) - mean;
      return difference * difference;
    });
    const float variance = squares / static_cast<float>(width);
    const float factor = 1.0f / std::sqrt(variance + epsilon);
    for (int64_t i = 0; i < width; ++i) {
      states[i] = (states[i] - mean) * factor * weight[i] + bias[i];
    }
  }
}

inline bool any(Ints lanes) {
#if defined(__aarch64__)
  return vmaxvq_u32(reinterpret_cast<uint32x4_t>(lanes)) != 0;
#elif defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(lanes), reinterpret_cast<__m512i>(lanes)) != 0;
#else
  return _mm256_testz_si256(reinterpret_cast<__m256i>(lanes), reinterpret_cast<__m256i>(lanes)) == 0;
#endif
}

inline float largest_of(const float* row, int64_t width) {
  Floats most = broadcast(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Floats part = load(row + i);
    most = part > most ? part : most;
  }
  float result = *std::max_element(reinterpret_cast<float*>(&most), reinterpret_cast<float*>(&most) + kLanes);
  for (; i < width; ++i) {
    result = std::max(result, row[i]);
  }
  return result;
}

float log_sum(const float* row, int64_t width) {
  const float most = largest_of(row, width);
  const float sum = sum_over(width, [&](auto read, int64_t i) { return exponential(read(row + i) - most); });
  return most + std::log(sum);
}

void largest(const float* row, int64_t width, int64_t count, float* numbers, int64_t* indices) {
  std::fill_n(numbers, count, -__builtin_inff());
  std::fill_n(indices, count, 0);
  auto consider = [&](int64_t i) {
    if (row[i] > numbers[count - 1]) {
      int64_t at = count - 1;
      for (; at > 0 && row[i] > numbers[at - 1]; --at) {
        numbers[at] = numbers[at - 1];
        indices[at] = indices[at - 1];
      }
      numbers[at] = row[i];
      indices[at] = i;
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Ints above = load(row + i) > broadcast(numbers[count - 1]);
    if (any(above)) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        consider(i + lane);
      }
    }
  }
  for (; i < width; ++i) {
    consider(i);
  }
}

}  // namespace

namespace RELUFORMER_ISA {
extern const TranslationKernels translation_kernels;
const TranslationKernels translation_kernels{attend,   weigh,        multiply_floats, quantize,
                                             multiply, add_and_norm, log_sum,         largest};
}  // namespace RELUFORMER_ISA

#if defined(__AVX512VNNI__)
const TranslationKernels* avx512::amx_translation_kernels() {
#ifdef RELUFORMER_AMX
  static const TranslationKernels kernels{attend,          weigh,        multiply_floats, quantize,
                                          multiply_by_amx, add_and_norm, log_sum,         largest};
  static const bool has_amx = may_use_amx();
  return has_amx ? &kernels : nullptr;
#else
  return nullptr;
#endif
}
#endif

}  // namespace reluformer
