// What is compiled once for each instruction set: everything between the matrix products. kernels.cpp has the code.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace reluformer {

// The activations of attention: the struct in activations.h, its name, and whether it is closed at zero, as in
// fused/activations.py. The number of an activation is its index in this list.
#define RELUFORMER_ACTIVATIONS(ACTIVATION) \
  ACTIVATION(Relu, "relu", true)           \
  ACTIVATION(Relu2, "relu2", true)         \
  ACTIVATION(Relu6, "relu6", true)         \
  ACTIVATION(Sigmoid, "sigmoid", false)    \
  ACTIVATION(Softplus, "softplus", false)  \
  ACTIVATION(Gelu, "gelu", false)          \
  ACTIVATION(Identity, "identity", false)

struct Activation {
  const char* name;
  bool closed_at_zero;  // a key of zeros gets no weight and no gradient, so that it needs no mask
};

#define RELUFORMER_ACTIVATION_ROW(H, name, closed_at_zero) {name, closed_at_zero},
constexpr Activation kActivations[] = {RELUFORMER_ACTIVATIONS(RELUFORMER_ACTIVATION_ROW)};
constexpr int64_t kActivationCount = sizeof(kActivations) / sizeof(Activation);

// Dropout keeps a weight where a hash of its position passes a threshold: the same in both passes, whatever the tiles.
struct Dropout {
  uint64_t threshold = 0;          // p · 2³²
  float kept = 1.0f;               // 1 / (1 - p)
  const uint32_t* keys = nullptr;  // (rows,) of the tile
};

constexpr int64_t kQueries = 128;  // rows of a tile, at most

// A tile of scores: `rows` queries by `columns` keys. Columns are a multiple of kColumns, and rows even but for a tile
// of one row.
struct Tile {
  int64_t rows, columns;
  Layout layout;         // of scores, weights and gradients
  int64_t real_rows;     // the rows after them are padding and see nothing
  int64_t first_column;  // of the tile in its sequence
  int64_t visible;       // row 0 sees the first min(visible, limit) columns of the tile; negative: none
  int64_t limit;
  bool causal;               // each row sees one column more than the row before
  int64_t window;            // the most columns that a row sees, where causal
  const int32_t* real_keys;  // (columns,) -1 for keys that are real, 0 for others; null where no mask is needed
  float scale;               // of the scores
  Dropout dropout;
};

struct Size {
  int64_t rows, columns;
};

// How tiles of numbers lie, as their products want them.
constexpr Layout tile_layout(bool panels, const Size& size) {
  return panels ? in_panels(size.rows) : in_rows(size.columns);
}

// One query of a tensor, and the keys and values that it may see as they lie in memory.
template <typename Scalar>
struct Row {
  const Scalar* query;
  Matrix<const Scalar> keys, values;
  int64_t dims, dims_v;
  const bool* real;  // (keys,); null: all are
};

// Of tensors of Scalar, computed in tiles of Number: the same, or float for tensors of BFloat16 where the processor has
// no products of bfloat16. They are widened as tiles are copied, and narrowed as results are written.
//
// Matrices of tensors lie in rows. Products are product.h's, of tiles in panels; or with AVX-512, for which they are no
// faster, oneDNN's, of tiles in rows. Those of bfloat16 want their second factor as "pairs", two rows in each other:
// (rows / 2, columns, 2).
template <typename TensorScalar, typename TileNumber = TensorScalar>
struct Kernels {
  using Scalar = TensorScalar;
  using Number = TileNumber;
  void (*multiply)(const Product<float>& product);  // null: oneDNN's
  Layout layout(const Size& size) const { return tile_layout(multiply != nullptr, size); }
  // With zeros after the rows and columns, up to `padded`, and where `real` says so.
  void (*copy_rows)(const Matrix<const Scalar>& from, const Size& size, const bool* real, const Matrix<Number>& to,
                    const Size& padded);
  // Rows · factor_i, padded with zeros: the gradient of the output.
  void (*scale_rows)(const Matrix<const Scalar>& from, const Size& size, const float* factors, const Matrix<Number>& to,
                     const Size& padded);
  // (rows, columns) of multiples of kColumns → (columns, rows); as pairs if asked for.
  void (*transpose)(const Matrix<const Number>& from, const Size& size, bool pairs, const Matrix<Number>& to);
  // (rows, columns) → pairs
  void (*pair_rows)(const Matrix<const Number>& from, const Size& size, Number* to);
  // scores → weights D h(x), and sums of h(x) and of h(x) log h(x) added to (rows,) where not null. The weights may be
  // written over the scores.
  void (*weigh[kActivationCount])(const Tile& tile, const float* scores, Number* weights, float* sums, float* sums_log);
  // gradients: of the dropped weights → of the products q·k, h'(x) (D g + rho_i + tau_i log h(x)) · scale, in rows and,
  // of bfloat16, as pairs; and D h(x) as pairs. rho, tau: (rows,). The outputs of float may be written over the inputs.
  void (*differentiate[kActivationCount])(const Tile& tile, const float* scores, const float* gradients,
                                          const float* rho, const float* tau, Number* weights, Number* rows,
                                          Number* pairs);
  // values · factor_i → rows of a tensor; factors null: 1.
  void (*write_rows)(const Matrix<const float>& values, const float* factors, const Size& size,
                     const Matrix<Scalar>& to);
  // The same from (columns, rows) values: gradients of keys and values.
  void (*write_transposed)(const Matrix<const float>& values, const Size& size, const Matrix<Scalar>& to);
  // One query without a copy of keys and values: output (dims_v,), sums as in `weigh`. weights: room for (keys,)
  // rounded up.
  void (*attend_row[kActivationCount])(const Tile& tile, const Row<Scalar>& row, float* weights, float* output,
                                       float* sums, float* sums_log);
};

struct KernelSet {
  Kernels<float> of_float;
  const Kernels<BFloat16>* of_bfloat16;                 // null without products of bfloat16
  const Kernels<BFloat16, float>* of_widened_bfloat16;  // null with them
};

#ifdef __aarch64__
namespace neon {
extern const KernelSet kernels;
}
#else
namespace avx2 {
extern const KernelSet kernels;
}
namespace avx512 {
extern const KernelSet kernels;
}
#endif

}  // namespace reluformer
