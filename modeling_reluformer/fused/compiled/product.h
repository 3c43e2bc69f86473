// The products of attention on ARM, whose oneDNN has none: rows of A by columns of B, whose elements are widened as they are read.
#pragma once

#include "vectors.h"

namespace reluformer {
namespace {

constexpr int kProductRows = 4, kProductVectors = kColumns / kLanes;

// Two neighbouring rows of B at some columns; those of bfloat16 lie in each other.
inline void load_two(const float* place, int64_t stride, Floats& first, Floats& second) {
  first = load(place);
  second = load(place + stride);
}

inline void load_two(const BFloat16* place, int64_t, Floats& first, Floats& second) {
  const Words pair = vector_at<Words>(place);
  first = reinterpret_cast<Floats>(pair << 16);
  second = reinterpret_cast<Floats>(pair & 0xFFFF0000u);
}

// R rows of C and kColumns of its columns, for an even k.
template <int R, typename Scalar>
void multiply_block(int64_t k, const Scalar* a, int64_t a_stride, const Scalar* b, int64_t b_stride, float* c, int64_t c_stride, bool add) {
  constexpr int64_t kOfColumn = sizeof(float) / sizeof(Scalar);  // elements of B from one column to the next
  Floats sums[R][kProductVectors] = {};
  for (int64_t i = 0; i < k; i += 2, b += 2 * b_stride) {
#pragma GCC unroll 4
    for (int part = 0; part < kProductVectors; ++part) {
      Floats first, second;
      load_two(b + part * kLanes * kOfColumn, b_stride, first, second);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        sums[r][part] += widen(a[r * a_stride + i]) * first;
        sums[r][part] += widen(a[r * a_stride + i + 1]) * second;
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int part = 0; part < kProductVectors; ++part) {
      float* to = c + r * c_stride + part * kLanes;
      store(to, add ? load(to) + sums[r][part] : sums[r][part]);
    }
  }
}

}  // namespace

// C (m, n) = A (m, k) B (k, n) + C if asked for; n a multiple of kColumns, m and k even; strides in elements; B of bfloat16 as pairs.
template <typename Scalar>
void multiply(int64_t m, int64_t n, int64_t k, const Scalar* a, int64_t a_stride, const Scalar* b, int64_t b_stride, float* c, int64_t c_stride,
              bool add) {
  constexpr int64_t kOfColumn = sizeof(float) / sizeof(Scalar);
  for (int64_t column = 0; column < n; column += kColumns) {
    int64_t row = 0;
    auto rows = [&](auto function, int64_t count) {
      for (; row + count <= m; row += count) {
        function(k, a + row * a_stride, a_stride, b + column * kOfColumn, b_stride, c + row * c_stride + column, c_stride, add);
      }
    };
    rows(multiply_block<kProductRows, Scalar>, kProductRows);
    rows(multiply_block<2, Scalar>, 2);
  }
}

inline void release_products() {}

}  // namespace reluformer
