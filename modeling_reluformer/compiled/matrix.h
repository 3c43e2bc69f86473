// Matrices of numbers, and what a product of them takes. Plain data, with no vectors of any instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

namespace reluformer {

constexpr int64_t kColumns = 16;  // of a panel; all widths of tiles are multiples of it

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// bfloat16 as its bits
struct BFloat16 {
  uint16_t bits;
};

// Where the numbers of a matrix lie: `row` numbers from a row to the next, and `panel` numbers from sixteen columns to
// the next sixteen, which lie side by side.
struct Layout {
  int64_t row, panel;

  int64_t offset(int64_t at_row, int64_t column) const {
    return at_row * row + (column >> 4) * panel + (column & 15);  // without the care for signs of / and %
  }
};

// Rows one after the other, `stride` numbers apart.
constexpr Layout in_rows(int64_t stride) { return {stride, kColumns}; }

// Panels of sixteen columns, (columns / 16, rows, 16): what a product reads then lies side by side, whatever the width
// of the matrix.
constexpr Layout in_panels(int64_t rows) { return {kColumns, rows * kColumns}; }

template <typename Number>
struct Matrix {
  Number* data;
  Layout layout;

  template <typename Other = Number, typename = std::enable_if_t<!std::is_const_v<Other>>>
  operator Matrix<const Other>() const {
    return {data, layout};
  }
};

// C (rows, columns) = A (rows, depth) B (depth, columns), plus the C that is there if `add`.
//
// Of floats, columns are a multiple of sixteen, and B is best in panels. Of bfloat16, all are in rows, and B is in
// pairs: see `Kernels`.
template <typename Number>
struct Product {
  int64_t rows, columns, depth;
  Matrix<const Number> a, b;
  Matrix<float> c;
  bool add;
};

}  // namespace reluformer
