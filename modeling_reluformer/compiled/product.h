// The product of matrices of floats, for attention and translation, in the vector types of vectors.h.
//
// Each number of C is one chain of fused multiply-adds in the order of A's columns. So its bits are the same with every
// instruction set, number of rows and panels at a time; and with `add`, a product in parts has the bits of the whole.
#pragma once

#include "matrix.h"
#include "vectors.h"

namespace reluformer {
namespace {

// C is computed in blocks of this many rows and panels, whose sums stay in registers. Of the 16 registers of AVX2 they
// take twelve, beside two of B and one of A; of the 32 of AVX-512 sixteen, and of NEON's 24. As many sums must be under
// way as multiply-adds take cycles, times those that begin in one: eight on all processors that we know.
#ifdef __AVX512F__
constexpr int kProductRows = 8, kProductPanels = 2;
#else
constexpr int kProductRows = 6, kProductPanels = 1;
#endif
constexpr int kMostPanels = 4;  // at a time, of few rows
constexpr int kPanelVectors = kColumns / kLanes;

// R rows of P panels; a, b and c point at the first number of each.
template <int R, int P>
void multiply_block(const Product<float>& product, const float* a, const float* b, float* c) {
  constexpr int kParts = P * kPanelVectors;
  const int64_t a_row = product.a.layout.row, b_panel = product.b.layout.panel;
  auto place_of = [&](int r, int part) {
    return c + r * product.c.layout.row + part / kPanelVectors * product.c.layout.panel + part % kPanelVectors * kLanes;
  };
  Floats sums[R][kParts];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int part = 0; part < kParts; ++part) {
      sums[r][part] = product.add ? load(place_of(r, part)) : broadcast(0.0f);
    }
  }
  auto add_column = [&](int64_t i) __attribute__((always_inline)) {
    Floats row_of_b[kParts];
#pragma GCC unroll 16
    for (int part = 0; part < kParts; ++part) {
      row_of_b[part] = load(b + part / kPanelVectors * b_panel + part % kPanelVectors * kLanes);
    }
    b += product.b.layout.row;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Floats of_a = broadcast(a[r * a_row + i]);
#pragma GCC unroll 16
      for (int part = 0; part < kParts; ++part) {
        sums[r][part] = fused(of_a, row_of_b[part], sums[r][part]);
      }
    }
  };
  for (int64_t panel = 0; panel < product.depth / kColumns; ++panel) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kColumns; ++i) {
      add_column(i);
    }
    a += product.a.layout.panel;
  }
  for (int64_t i = 0; i < product.depth % kColumns; ++i) {
    add_column(i);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int part = 0; part < kParts; ++part) {
      store(place_of(r, part), sums[r][part]);
    }
  }
}

// By how many panels this many rows are multiplied at a time: a power of two.
constexpr int panels_at_a_time(int rows) {
  int panels = kMostPanels;
  while (panels * rows > kProductRows * kProductPanels) {
    panels /= 2;
  }
  return panels;
}

typedef void (*MultiplyBlock)(const Product<float>& product, const float* a, const float* b, float* c);

template <int R, int P>
constexpr MultiplyBlock block_of() {
  if constexpr (P <= panels_at_a_time(R)) {
    return multiply_block<R, P>;
  }
  return nullptr;
}

template <int P, int... row>
constexpr MultiplyBlock block_of_rows(int64_t rows, std::integer_sequence<int, row...>) {
  constexpr MultiplyBlock kBlocks[] = {block_of<row + 1, P>()...};
  return kBlocks[rows - 1];
}

// The panels from `panel` on, as far as P at a time go. Rows are divided evenly, since a block of few would wait for
// its own sums.
template <int P>
void multiply_panels(const Product<float>& product, int64_t groups, int64_t& panel) {
  for (; panel + P <= product.columns / kColumns; panel += P) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t row = product.rows * group / groups, end = product.rows * (group + 1) / groups;
      const float *a = product.a.data + row * product.a.layout.row,
                  *b = product.b.data + panel * product.b.layout.panel;
      float* c = product.c.data + row * product.c.layout.row + panel * product.c.layout.panel;
      block_of_rows<P>(end - row, std::make_integer_sequence<int, kProductRows>())(product, a, b, c);
    }
  }
}

void multiply(const Product<float>& product) {
  const int64_t groups = (product.rows + kProductRows - 1) / kProductRows;
  const int most = groups ? panels_at_a_time(static_cast<int>((product.rows + groups - 1) / groups)) : 0;
  int64_t panel = 0;
  if (most >= 4) {
    multiply_panels<4>(product, groups, panel);
  }
  if (most >= 2) {
    multiply_panels<2>(product, groups, panel);
  }
  multiply_panels<1>(product, groups, panel);
}

}  // namespace
}  // namespace reluformer
