// The kernels of translation_kernels.h for one instruction set, RELUFORMER_ISA: portable, avx2 or avx512.
#include "translation_kernels.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vectors.h"

namespace reluformer {
namespace {

inline float dot(const float* a, const float* b, int64_t dims) {
  Floats total{};
  int64_t i = 0;
  for (; i + kLanes <= dims; i += kLanes) {
    total += load(a + i) * load(b + i);
  }
  float sum = sum_of(total);
  for (; i < dims; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

inline void add(float weight, const float* from, int64_t dims, float* to) {
  const Floats weights = all(weight);
  int64_t i = 0;
  for (; i + kLanes <= dims; i += kLanes) {
    store(to + i, load(to + i) + weights * load(from + i));
  }
  for (; i < dims; ++i) {
    to[i] += weight * from[i];
  }
}

inline void exponentials(float* row, int64_t width, float shift) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    store(row + i, exponential(load(row + i) - shift));
  }
  for (; i < width; ++i) {
    row[i] = std::exp(row[i] - shift);
  }
}

void attend(const Cached& call, int64_t activation, float* room, float* output) {
  auto place = [&](int64_t t) {
    return t * call.position + (call.places ? call.places[t * call.places_stride] * call.row : 0);
  };
  for (int64_t t = 0; t < call.length; ++t) {
    room[t] = dot(call.query, call.keys + place(t), call.dims) * call.scale;
  }
  float factor = call.row_scale;
  if (activation == kDecodingSoftmax) {
    exponentials(room, call.length, *std::max_element(room, room + call.length));
    float sum = 0.0f;
    for (int64_t t = 0; t < call.length; ++t) {
      sum += room[t];
    }
    factor = 1.0f / sum;
  }
  std::fill_n(output, call.dims, 0.0f);
  for (int64_t t = 0; t < call.length; ++t) {
    float weight = room[t];
    if (activation != kDecodingSoftmax) {
      if (weight <= 0.0f) {
        continue;
      }
      weight = activation == kDecodingRelu2 ? weight * weight : weight;
    }
    add(weight * factor, call.values + place(t), call.dims, output);
  }
}

void quantize(const float* from, int64_t count, int64_t width, uint8_t* bytes, int64_t stride, float* scales) {
  for (int64_t row = 0; row < count; ++row, from += width, bytes += stride) {
    scales[row] = quantize_row(from, width, bytes);
    std::fill(bytes + width, bytes + stride, uint8_t{128});
  }
}

typedef int32_t Sums[kOutputs];

// Sums of R rows and one block of sixteen outputs. Integers: the same on every processor.
template <int R>
inline void products(const int8_t* weights, const uint8_t* bytes, int64_t stride, int64_t steps, Sums (&sums)[R]) {
#if defined(__AVX512VNNI__)
  __m512i total[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    total[r] = _mm512_setzero_si512();
  }
  for (int64_t i = 0; i < steps; ++i) {
    const __m512i part = _mm512_loadu_si512(weights + i * kOutputs * kInputs);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, bytes + r * stride + i * kInputs, sizeof four);
      total[r] = _mm512_dpbusd_epi32(total[r], _mm512_set1_epi32(four), part);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_si512(sums[r], total[r]);
  }
#elif defined(__AVX2__)
  const __m256i low = _mm256_set1_epi32(0x00FF00FF);
  for (int r = 0; r < R; ++r) {
    __m256i total[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t i = 0; i < steps; ++i) {
      int32_t four;
      std::memcpy(&four, bytes + r * stride + i * kInputs, sizeof four);
      const __m256i value = _mm256_set1_epi32(four), even = _mm256_and_si256(value, low), odd = _mm256_and_si256(_mm256_srli_epi16(value, 8), low);
      for (int half = 0; half < 2; ++half) {
        // pairs of bytes in 16 bits each, without the saturation of vpmaddubsw
        const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + (i * 2 + half) * 32));
        const __m256i even_part = _mm256_srai_epi16(_mm256_slli_epi16(part, 8), 8), odd_part = _mm256_srai_epi16(part, 8);
        const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(even, even_part), _mm256_madd_epi16(odd, odd_part));
        total[half] = _mm256_add_epi32(total[half], sum);
      }
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums[r]), total[0]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums[r] + 8), total[1]);
  }
#else
  for (int r = 0; r < R; ++r) {
    std::memset(sums[r], 0, sizeof sums[r]);
    for (int64_t i = 0; i < steps; ++i) {
      for (int64_t n = 0; n < kOutputs; ++n) {
        for (int64_t j = 0; j < kInputs; ++j) {
          sums[r][n] += bytes[r * stride + i * kInputs + j] * weights[(i * kOutputs + n) * kInputs + j];
        }
      }
    }
  }
#endif
}

template <int R>
void multiply_rows(const PackedBytes& matrix, const uint8_t* bytes, int64_t stride, const float* scales, int64_t block, float* to) {
  Sums sums[R];
  products<R>(matrix.weights + block * kOutputs * stride, bytes, stride, stride / kInputs, sums);
  const int64_t first = block * kOutputs, count = std::min(kOutputs, matrix.outputs - first);
  for (int r = 0; r < R; ++r) {
    for (int64_t n = 0; n < count; ++n) {
      const float product = static_cast<float>(sums[r][n] - matrix.sums[first + n]) * (scales[r] * matrix.scales[first + n]);
      to[r * matrix.outputs + first + n] = product + matrix.biases[first + n];
    }
  }
}

void multiply(const PackedBytes& matrix, const uint8_t* bytes, int64_t stride, const float* scales, int64_t count, int64_t begin, int64_t end,
              float* to) {
  for (int64_t block = begin; block < end; ++block) {
    int64_t row = 0;
    for (; row + 8 <= count; row += 8) {
      multiply_rows<8>(matrix, bytes + row * stride, stride, scales + row, block, to + row * matrix.outputs);
    }
    for (; row + 2 <= count; row += 2) {
      multiply_rows<2>(matrix, bytes + row * stride, stride, scales + row, block, to + row * matrix.outputs);
    }
    for (; row < count; ++row) {
      multiply_rows<1>(matrix, bytes + row * stride, stride, scales + row, block, to + row * matrix.outputs);
    }
  }
}

void add_and_norm(float* states, const float* updates, int64_t count, int64_t width, const float* weight, const float* bias, float epsilon) {
  for (int64_t row = 0; row < count; ++row, states += width, updates += width) {
    for (int64_t i = 0; i < width; ++i) {
      states[i] += updates[i];
    }
    auto mean_of = [&](auto value) {
      Floats sums{};
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) {
        sums += value(load(states + i));
      }
      float sum = sum_of(sums);
      for (; i < width; ++i) {
        sum += value(all(states[i]))[0];
      }
      return sum / static_cast<float>(width);
    };
    const float mean = mean_of([](Floats x) { return x; });
    const float variance = mean_of([mean](Floats x) { return (x - mean) * (x - mean); });
    const float factor = 1.0f / std::sqrt(variance + epsilon);
    for (int64_t i = 0; i < width; ++i) {
      states[i] = (states[i] - mean) * factor * weight[i] + bias[i];
    }
  }
}

inline float largest_of(const float* row, int64_t width) {
  Floats most = all(-__builtin_inff());
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
  Floats sums{};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    sums += exponential(load(row + i) - most);
  }
  float sum = sum_of(sums);
  for (; i < width; ++i) {
    sum += std::exp(row[i] - most);
  }
  return most + std::log(sum);
}

void largest(const float* row, int64_t width, int64_t count, float* numbers, int64_t* places) {
  std::fill_n(numbers, count, -__builtin_inff());
  std::fill_n(places, count, 0);
  auto consider = [&](int64_t i) {
    if (row[i] > numbers[count - 1]) {
      int64_t at = count - 1;
      for (; at > 0 && row[i] > numbers[at - 1]; --at) {
        numbers[at] = numbers[at - 1];
        places[at] = places[at - 1];
      }
      numbers[at] = row[i];
      places[at] = i;
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Ints above = load(row + i) > all(numbers[count - 1]);
    bool any = false;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      any |= above[lane] != 0;
    }
    if (any) {
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
const TranslationKernels translation_kernels{attend, quantize, multiply, add_and_norm, log_sum, largest};
}  // namespace RELUFORMER_ISA

}  // namespace reluformer
