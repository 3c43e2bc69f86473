// What happens to one row of a block of scores between its matrix products: statistics, dropout, gradient of the scores.
//
// Plain loops over float32 or bfloat16 that a compiler turns into vector instructions. A row has `columns` weights
// u = relu(x), of which the first `visible` may be seen; what lies behind them is put to zero.
#pragma once

#include <c10/util/BFloat16.h>

#include <cfloat>
#include <cstdint>
#include <cstring>

namespace reluformer {

constexpr int64_t kLanes = 32;

// Inlined into a loop over rows, gcc 12 leaves the loops with a logarithm scalar: twenty times slower, all else equal.
#define RELUFORMER_ROW __attribute__((noinline))

inline float load(float value) {
  return value;
}

inline float load(c10::BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.x) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline void store(float* place, float value) {
  *place = value;
}

// Rounds to the nearest, ties to even; a NaN stays one.
inline void store(c10::BFloat16* place, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  place->x = static_cast<uint16_t>(value == value ? rounded : 0x7FC0u);
}

// log(x) for x >= 0 to two units in the last place, and infinity and NaN themselves; of zero and subnormal numbers the logarithm
// of the smallest normal one, which meets a factor of zero. x = 2^e m with m in [1/√2, √2), log m = 2 artanh(s) =
// 2 (s + s³/3 + …), s = (m - 1)/(m + 1).
inline float logarithm(float x) {
  const float clamped = x < FLT_MIN ? FLT_MIN : x;
  int32_t bits;
  std::memcpy(&bits, &clamped, sizeof bits);
  const int32_t shifted = bits - 0x3F3504F3;  // the bits of 1/√2
  const int32_t exponent = shifted >> 23;
  const int32_t mantissa_bits = (shifted & 0x007FFFFF) + 0x3F3504F3;
  float mantissa;
  std::memcpy(&mantissa, &mantissa_bits, sizeof mantissa);
  const float s = (mantissa - 1.0f) / (mantissa + 1.0f), square = s * s;
  const float series = square * (1.0f / 3 + square * (1.0f / 5 + square * (1.0f / 7 + square * (1.0f / 9))));
  // log 2 in two parts, of which the first has so few digits that its product with the exponent is exact
  const float e = static_cast<float>(exponent);
  const float result = e * 0.693145751953125f + (2.0f * s + (2.0f * s * series + e * 1.42860682030941723e-6f));
  return x <= FLT_MAX ? result : x;
}

// Dropout keeps a weight where a hash of its place passes a threshold: the same in both passes, however blocks are cut.
struct Dropout {
  uint32_t key;        // of the row
  uint32_t threshold;  // p · 2³²
  float kept;          // 1 / (1 - p)

  float factor(uint32_t column) const {
    uint32_t hash = (column + 1) * 0x9E3779B9u ^ key;
    hash = (hash ^ (hash >> 16)) * 0x21F0AAADu;
    hash = (hash ^ (hash >> 15)) * 0x735A2D97u;
    hash ^= hash >> 15;
    return hash >= threshold ? kept : 0.0f;
  }
};

inline uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// sum = Σ u, sum_log = Σ u log u (0 unless Entropy), over the visible columns. The loops have one sum in each lane, since a
// compiler may not change the order of a single one.
template <bool Entropy, typename Scalar>
RELUFORMER_ROW void sum_row(const Scalar* weights, int64_t visible, float& sum, float& sum_log) {
  float sums[kLanes] = {}, sums_log[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= visible; j += kLanes) {
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) {
      const float weight = load(weights[j + lane]);
      sums[lane] += weight;
      if (Entropy) {
        sums_log[lane] += weight * logarithm(weight);
      }
    }
  }
  for (int lane = 0; lane < static_cast<int>(visible - j); ++lane) {
    const float weight = load(weights[j + lane]);
    sums[lane] += weight;
    if (Entropy) {
      sums_log[lane] += weight * logarithm(weight);
    }
  }
  sum = sum_log = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) {
    sum += sums[lane];
    sum_log += sums_log[lane];
  }
}

template <typename Scalar>
void hide_row(Scalar* weights, int64_t columns, int64_t visible) {
  if (visible < columns) {
    std::memset(static_cast<void*>(weights + visible), 0, (columns - visible) * sizeof(Scalar));
  }
}

template <typename Scalar>
void drop_row(Scalar* weights, int64_t visible, const Dropout& dropout) {
#pragma omp simd
  for (int64_t j = 0; j < visible; ++j) {
    store(weights + j, load(weights[j]) * dropout.factor(static_cast<uint32_t>(j)));
  }
}

// gradient: of the dropped weights; becomes that of the scores, 1[u > 0] (D g + rho + tau log u). weights: become D u.
template <bool Entropy, bool Drop, typename Scalar>
RELUFORMER_ROW void differentiate_row(
    Scalar* gradient, Scalar* weights, int64_t visible, float rho, float tau, const Dropout& dropout) {
#pragma omp simd
  for (int64_t j = 0; j < visible; ++j) {
    const float weight = load(weights[j]);
    const float factor = Drop ? dropout.factor(static_cast<uint32_t>(j)) : 1.0f;
    float result = load(gradient[j]) * factor + rho;
    if (Entropy) {
      result += tau * logarithm(weight);
    }
    store(gradient + j, weight <= 0.0f ? 0.0f : result);
    if (Drop) {
      store(weights + j, weight * factor);
    }
  }
}

}  // namespace reluformer
