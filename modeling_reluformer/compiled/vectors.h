// A register of floats at a time, in the vector types of gcc and clang, and the functions that activations need of
// them.
//
// The types are as wide as the registers of the instruction set that a file is compiled for: gcc carries wider ones
// through memory. Nothing here depends on its vectoriser, which leaves loops with a logarithm scalar.
#pragma once

#ifdef __aarch64__
#include <arm_neon.h>
#elif defined(__FMA__)
#include <immintrin.h>
#endif

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "matrix.h"

namespace reluformer {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 8;
#endif
typedef std::make_integer_sequence<int, kLanes> EachLane;

typedef float Floats __attribute__((vector_size(4 * kLanes), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes), may_alias));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), may_alias));

namespace {

// In a namespace without a name, as all that is compiled for several instruction sets: a linker keeps one copy of an
// `inline` function, and might keep that of another set.
inline Floats broadcast(float value) { return value - Floats{}; }

template <int... lane>
inline Ints numbers(std::integer_sequence<int, lane...>) {
  return Ints{lane...};
}

inline Ints lane_numbers() { return numbers(EachLane()); }

// A vector at any address. Not by a pointer to a type of lower alignment, which clang forgets in templates.
template <typename Vector, typename Number>
inline Vector vector_at(const Number* from) {
  Vector result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

inline Floats load(const float* from) { return vector_at<Floats>(from); }

inline Floats load(const BFloat16* from) {
  return reinterpret_cast<Floats>(__builtin_convertvector(vector_at<Halves>(from), Words) << 16);
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

// a · b + c, rounded once, whatever the compiler is told of contractions.
#if defined(__aarch64__)
inline Floats fused(Floats a, Floats b, Floats c) {
  typedef float32x4_t Register;
  return reinterpret_cast<Floats>(
      vfmaq_f32(reinterpret_cast<Register>(c), reinterpret_cast<Register>(a), reinterpret_cast<Register>(b)));
}
#elif defined(__AVX512F__)
inline Floats fused(Floats a, Floats b, Floats c) {
  typedef __m512 Register;
  return reinterpret_cast<Floats>(
      _mm512_fmadd_ps(reinterpret_cast<Register>(a), reinterpret_cast<Register>(b), reinterpret_cast<Register>(c)));
}
#elif defined(__FMA__)
inline Floats fused(Floats a, Floats b, Floats c) {
  typedef __m256 Register;
  return reinterpret_cast<Floats>(
      _mm256_fmadd_ps(reinterpret_cast<Register>(a), reinterpret_cast<Register>(b), reinterpret_cast<Register>(c)));
}
#endif

// bfloat16 numbers, rounded to the nearest, ties to even; a NaN stays one.
inline Halves rounded(Floats value) {
#ifdef __AVX512BF16__
  return reinterpret_cast<Halves>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
#else
  const Words bits = reinterpret_cast<Words>(value);
  const Words halves = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return __builtin_convertvector(value == value ? halves : halves * 0u + 0x7FC0u, Halves);
#endif
}

inline void store(BFloat16* to, Floats value) {
  const Halves bits = rounded(value);
  std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
}

inline float widen(float value) { return value; }

inline float widen(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline void narrow(float* to, float value) { *to = value; }

inline void narrow(BFloat16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  to->bits = value == value ? static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16) : 0x7FC0u;
}

// Of Floats or Ints.
template <typename Lanes>
inline auto sum_of(Lanes value) {
  typedef std::remove_reference_t<decltype(value[0])> Four __attribute__((vector_size(16)));
  Four part[kLanes / 4];
  std::memcpy(part, &value, sizeof part);
  Four sum = part[0];
  if constexpr (kLanes == 8) {
    sum = part[0] + part[1];
  } else if constexpr (kLanes == 16) {
    sum = (part[0] + part[2]) + (part[1] + part[3]);
  }
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// A row as bytes x / scale + 128, and the scale: NaN where the row holds a number that is not finite.
inline float quantize_row(const float* from, int64_t width, uint8_t* to) {
  Floats largest{}, strange{};
  float most = 0.0f, strange_rest = 0.0f;
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Floats value = load(from + i), size = value < 0.0f ? -value : value;
    largest = size > largest ? size : largest;
    strange += value - value;  // NaN for what is not finite
  }
  for (; i < width; ++i) {
    most = std::fabs(from[i]) > most ? std::fabs(from[i]) : most;
    strange_rest += from[i] - from[i];
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    most = largest[lane] > most ? largest[lane] : most;
  }
  const bool finite = sum_of(strange) + strange_rest == 0.0f;
  const float factor = most > 1e-30f ? 127.0f / most : 0.0f;  // what is smaller counts as zero
  for (i = 0; i < width; ++i) {
    const float step = finite ? from[i] * factor : 0.0f;
    to[i] = static_cast<uint8_t>(static_cast<int32_t>(std::rint(step)) + 128);
  }
  return !finite ? __builtin_nanf("") : factor > 0.0f ? most / 127.0f : 0.0f;
}

// log(x) for x > 0 to two units in the last place; finite for zero and subnormal numbers, where it meets a factor of
// zero or a closed gate. With kEveryNumber, infinity and NaN are returned as they are; without it, the caller
// multiplies by x, which restores them.
//
// x = 2^e (1 + f) with 1 + f in [1/√2, √2); log(1 + f) = f - f²/2 + f³ P(f), P by least squares, relative error 7e-9.
template <bool kEveryNumber>
inline Floats logarithm(Floats x) {
  const Ints shifted = reinterpret_cast<Ints>(x) - 0x3F3504F3;  // the bits of 1/√2
  const Ints exponent = shifted >> 23;
  const Floats f = reinterpret_cast<Floats>((shifted & 0x007FFFFF) + 0x3F3504F3) - 1.0f, square = f * f;
  Floats series = 0.12761564552783966f - f * 0.07634460180997849f;
  series = -0.13160189986228943f + f * series;
  series = 0.14201760292053223f + f * series;
  series = -0.16623356938362122f + f * series;
  series = 0.20001226663589478f + f * series;
  series = -0.2500081956386566f + f * series;
  series = 0.3333333134651184f + f * series;
  // log 2 in two parts, of which the first has so few digits that its product with the exponent is exact
  const Floats e = __builtin_convertvector(exponent, Floats);
  const Floats result = e * 0.693145751953125f + (f + (square * (f * series - 0.5f) + e * 1.42860682030941723e-6f));
  if constexpr (kEveryNumber) {
    return x <= FLT_MAX ? result : x;
  }
  return result;
}

// e^x to two units in the last place; 0 below the smallest normal number, NaN itself. x = n log 2 + r, |r| <= log(2)
// / 2.
inline Floats exponential(Floats x) {
  const Floats high = x > 88.72283f ? broadcast(88.72283f) : x,
               inside = high < -87.33654f ? broadcast(-87.33654f) : high;
  const Floats rounder = broadcast(12582912.0f);  // 1.5 · 2²³: adding it rounds to an integer
  const Floats n = (inside * 1.44269504f + rounder) - rounder;
  const Floats r = (inside - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  Floats series = 1.0f / 720 + r * (1.0f / 5040);
  series = 1.0f / 120 + r * series;
  series = 1.0f / 24 + r * series;
  series = 1.0f / 6 + r * series;
  series = 0.5f + r * series;
  const Floats power = 1.0f + (r + r * r * series);
  const Ints bits = reinterpret_cast<Ints>(power) + (__builtin_convertvector(n, Ints) << 23);
  const Floats result = x < -87.33654f ? broadcast(0.0f) : reinterpret_cast<Floats>(bits);
  return x > 88.72283f ? broadcast(__builtin_inff()) : (x == x ? result : x);
}

}  // namespace
}  // namespace reluformer
