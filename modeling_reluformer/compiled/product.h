// The products of attention on ARM, whose oneDNN has none: rows of A by columns of B, of floats.
#pragma once

#include "vectors.h"

namespace reluformer {
namespace {

constexpr int kProductRows = 4, kProductVectors = kColumns / kLanes;

// R rows of C and kColumns of its columns, for an even k.
template <int R>
void multiply_block(int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride, bool add) {
  Floats sums[R][kProductVectors] = {};
  for (int64_t i = 0; i < k; i += 2, b += 2 * b_stride) {
#pragma GCC unroll 4
    for (int part = 0; part < kProductVectors; ++part) {
      const Floats first = load(b + part * kLanes), second = load(b + b_stride + part * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        sums[r][part] += a[r * a_stride + i] * first;
        sums[r][part] += a[r * a_stride + i + 1] * second;
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

// C (m, n) = A (m, k) B (k, n) + C if asked for; n a multiple of kColumns, m and k even; strides in elements.
inline void multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c,
                     int64_t c_stride, bool add) {
  for (int64_t column = 0; column < n; column += kColumns) {
    int64_t row = 0;
    auto rows = [&](auto function, int64_t count) {
      for (; row + count <= m; row += count) {
        function(k, a + row * a_stride, a_stride, b + column, b_stride, c + row * c_stride + column, c_stride, add);
      }
    };
    rows(multiply_block<kProductRows>, kProductRows);
    rows(multiply_block<2>, 2);
  }
}

inline void release_products() {}

}  // namespace reluformer
