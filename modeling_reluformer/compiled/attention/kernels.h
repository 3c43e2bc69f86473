// What is compiled once for each instruction set: everything between the matrix products. kernels.cpp has the code.
#pragma once

#include <cstdint>


namespace reluformer {

constexpr int64_t kColumns = 16;  // all widths of tiles are multiples of it

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// bfloat16 as its bits
struct BFloat16 {
  uint16_t bits;
};

// In the order of `call_of` in attention.cpp.
enum Activation : int64_t { kRelu, kRelu2, kRelu6, kSigmoid, kSoftplus, kGelu, kIdentity, kActivations };

// With these a key of zeros gets no weight and no gradient, so that it needs no mask.
constexpr bool closed_at_zero(int64_t activation) {
  return activation <= kRelu6;
}

// Dropout keeps a weight where a hash of its place passes a threshold: the same in both passes, however tiles are cut.
struct Dropout {
  uint64_t threshold = 0;  // p · 2³²
  float kept = 1.0f;       // 1 / (1 - p)
  const uint32_t* keys = nullptr;  // (rows,) of the tile
};

// A tile of scores: `rows` queries by `columns` keys, `stride` apart. Columns are a multiple of kColumns, rows an even number.
struct Tile {
  int64_t rows, columns, stride;
  int64_t real_rows;          // those behind are padding and see nothing
  int64_t first_column;       // of the tile in its sequence
  int64_t visible;            // how many columns of the tile row 0 sees, at most `limit`; may be negative
  int64_t limit;
  bool causal;                // each row sees one column more than the row before
  const int32_t* real_keys;   // (columns,) -1 for keys that are real, 0 for others; null where no mask is needed
  float scale;                // of the scores
  Dropout dropout;
};

// Of tensors of Scalar, computed in tiles of Number: the same, or float for tensors of BFloat16 where the processor has no products of
// bfloat16. They are widened as tiles are copied, and narrowed as results are written. "Pairs" is what oneDNN's products want as their second factor: for float the plain rows; for
// bfloat16 two rows in each other, (rows / 2, columns, 2).
template <typename TensorScalar, typename TileNumber = TensorScalar>
struct Kernels {
  using Scalar = TensorScalar;
  using Number = TileNumber;
  // (count, width) rows, `stride` apart → (padded_count, padded_width) with zeros behind and where `real` says so.
  void (*copy_rows)(const Scalar* from, int64_t stride, int64_t count, int64_t width, const bool* real, Number* to,
                    int64_t padded_count, int64_t padded_width);
  // (rows, columns) of multiples of kColumns → (columns, rows), `stride` apart; as pairs if asked for.
  void (*transpose)(const Number* from, int64_t rows, int64_t columns, int64_t from_stride, bool pairs, Number* to, int64_t stride);
  // (rows, columns), `stride` apart → pairs
  void (*pair_rows)(const Number* from, int64_t rows, int64_t columns, int64_t stride, Number* to);
  // scores (rows, stride) → weights D h(x) (rows, stride), and sums of h(x) and of h(x) log h(x) added to (rows,) where not null.
  // The weights may be written over the scores.
  void (*weigh[kActivations])(const Tile& tile, const float* scores, Number* weights, float* sums, float* sums_log);
  // gradients: of the dropped weights → of the products q·k, h'(x) (D g + rho_i + tau_i log h(x)) · scale, in rows and as pairs; and
  // D h(x) as pairs. rho, tau: (rows,). The outputs of float may be written over the inputs.
  void (*differentiate[kActivations])(const Tile& tile, const float* scores, const float* gradients, const float* rho,
                                      const float* tau, Number* weights, Number* rows, Number* pairs);
  // values · factor_i → rows of a tensor; factors null: 1.
  void (*write_rows)(const float* values, int64_t values_stride, const float* factors, int64_t rows, int64_t width, Scalar* to, int64_t stride);
  // the same from (columns, rows) values: gradients of keys and values
  void (*write_transposed)(const float* values, int64_t values_stride, int64_t rows, int64_t width, Scalar* to, int64_t stride);
  // rows · factor_i, padded with zeros: the gradient of the output
  void (*scale_rows)(const Scalar* from, int64_t stride, int64_t count, int64_t width, const float* factors, Number* to,
                     int64_t padded_count, int64_t padded_width);
  // One query without a copy of keys and values: output (dims_v,), sums as in `weigh`. weights: room for (keys,) rounded up.
  void (*attend_row[kActivations])(const Tile& tile, const Scalar* query, const Scalar* keys, int64_t key_stride, const Scalar* values,
                                   int64_t value_stride, int64_t dims, int64_t dims_v, const bool* real, float* weights,
                                   float* output, float* sums, float* sums_log);
};

struct KernelSet {
  Kernels<float> of_float;
  const Kernels<BFloat16>* of_bfloat16;                // null without products of bfloat16
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
