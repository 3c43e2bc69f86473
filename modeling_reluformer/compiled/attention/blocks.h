// Attention of one head of keys in tiles, by the kernels of kernels.h; where product.h is no faster, products by
// oneDNN's small kernels.
//
//     O_i = r_i sum_j D_ij u_ij v_j     S_i = r_i sum_j u_ij     T_i = r_i (sum_j u_ij log u_ij + log r_i sum_j u_ij)
//
//     dX_ij = h'(x_ij) r_i (D_ij dO_i·v_j + rho_i + tau_i log u_ij)
//     dq = c dX k     dk = c dX' q     dv = (D u)' (r dO)
//
// with x_ij = c q_i·k_j, u_ij = h(x_ij). Nothing here allocates but Scratch, which a thread keeps.
#pragma once

#ifndef __aarch64__
#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "kernels.h"

namespace reluformer {

constexpr int64_t kKeys = 256;      // columns of a tile, at most
constexpr int64_t kFewKeys = 64;    // rows of a tensor that stay in the first cache without a copy to panels
constexpr int64_t kSingleRows = 6;  // up to this many queries go without copies of keys and values

// A tensor (batch, heads, length, dims) whose last dimension lies side by side.
template <typename Scalar>
struct Heads {
  Scalar* data;
  int64_t batch_stride, head_stride, stride;

  Scalar* row(int64_t batch, int64_t head, int64_t index) const {
    return data + batch * batch_stride + head * head_stride + index * stride;
  }

  // Of one head, from a row on.
  Matrix<Scalar> rows(int64_t batch, int64_t head, int64_t index) const {
    return {row(batch, head, index), in_rows(stride)};
  }
};

// The same of a number for each query; `data` null: there is none.
struct RowNumbers {
  float* data;
  int64_t batch_stride, head_stride;

  float* row(int64_t batch, int64_t head, int64_t index) const {
    return data ? data + batch * batch_stride + head * head_stride + index : nullptr;
  }
};

// What all work items of a call have in common.
struct Call {
  int64_t activation, dims, dims_v, statistics;
  float scale;
  bool causal;
  int64_t offset, window;  // window: of causal calls; without one, more than there are keys
  double dropout;
  int64_t seed;
};

// One head of keys of one sequence, with the query heads that share it, and the queries that this item computes.
struct WorkItem {
  int64_t index, batch, key_head, first_head, heads;
  int64_t query_start;  // of the sequence
  int64_t query_begin, query_end, key_begin, key_end;
  const bool* real;  // of key_begin on; null: all are real
};

inline uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

inline uint32_t dropout_key(int64_t seed, int64_t item, int64_t head, int64_t row) {
  uint64_t key = mix(static_cast<uint64_t>(seed) + 0x9E3779B97F4A7C15u);
  for (int64_t part : {item, head, row}) {
    key = mix(key ^ (static_cast<uint64_t>(part) + 0x9E3779B97F4A7C15u));
  }
  return static_cast<uint32_t>(key >> 32);
}

#ifdef __aarch64__
template <typename Scalar>
void multiply(const Kernels<Scalar, float>& kernels, const Product<float>& product) {
  kernels.multiply(product);
}

inline void release_products() {}
#else
template <typename Number, typename OfTorch>
void multiply_by_onednn(const Product<Number>& product, const OfTorch* a, const OfTorch* b) {
  const int64_t a_row = product.a.layout.row, b_row = product.b.layout.row, c_row = product.c.layout.row;
  at::native::cpublas::brgemm(product.rows, product.columns, product.depth, a_row, b_row, c_row, product.add, a, b,
                              product.c.data);
}

template <typename Scalar>
void multiply(const Kernels<Scalar, float>& kernels, const Product<float>& product) {
  if (kernels.multiply) {
    kernels.multiply(product);
  } else {
    multiply_by_onednn(product, product.a.data, product.b.data);
  }
}

inline void multiply(const Kernels<BFloat16>&, const Product<BFloat16>& product) {
  const auto *a = reinterpret_cast<const at::BFloat16*>(product.a.data),
             *b = reinterpret_cast<const at::BFloat16*>(product.b.data);
  multiply_by_onednn(product, a, b);
}

inline void release_products() { at::native::cpublas::brgemm_release(); }
#endif

// Memory of one thread, aligned, cut into parts. It grows to what the largest call needs.
class Scratch {
 public:
  template <typename Type>
  Type* part(int64_t count) {
    const int64_t begin = used_;
    used_ += round_up(count * static_cast<int64_t>(sizeof(Type)), 64);
    return memory_ ? reinterpret_cast<Type*>(memory_.get() + begin) : nullptr;
  }

  // Calls `lay_out` twice: to measure, and to hand out.
  template <typename Function>
  void fit(Function lay_out) {
    std::unique_ptr<char[], Free> kept = std::move(memory_);
    used_ = 0;
    lay_out();
    if (used_ > size_) {
      kept.reset();
      kept.reset(static_cast<char*>(std::aligned_alloc(64, used_)));
      size_ = kept ? used_ : 0;
      if (!kept) {
        throw std::bad_alloc();
      }
    }
    memory_ = std::move(kept);
    used_ = 0;
    lay_out();
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char[], Free> memory_;
  int64_t size_ = 0, used_ = 0;
};

inline Scratch& scratch_of_this_thread() {
  static thread_local Scratch scratch;
  return scratch;
}

// Keys or values of a work item in tiles of `width` keys, padded with zeros, as the factors of products.
template <typename Number>
struct KeyTiles {
  static constexpr bool kInPairs = !std::is_same_v<Number, float>;
  int64_t count, tiles, width;
  int64_t padded_dims;                // features of a head, with zeros up to a multiple of kColumns
  bool is_factor = false;             // of products, beside `transposed`
  Number* rows;                       // (tiles, width, padded_dims)
  Number* pairs;                      // the same of bfloat16, two rows interleaved
  Number* transposed;                 // (tiles, padded_dims, width), of bfloat16 in pairs
  Matrix<const Number> first_rows{};  // of the first tile: those, or the tensor's own
  int64_t next_rows = 0;              // numbers to the next tile

  bool panels;  // how tiles lie

  KeyTiles(int64_t count, int64_t dims, bool panels)
      : count(count),
        tiles(std::max<int64_t>(1, (count + kKeys - 1) / kKeys)),
        width(count > kKeys ? kKeys : std::max<int64_t>(kColumns, round_up(count, kColumns))),
        padded_dims(round_up(dims, kColumns)),
        panels(panels) {}

  Layout layout(const Size& size) const { return tile_layout(panels, size); }

  // Floats of the sum of a gradient.
  int64_t size() const { return tiles * width * padded_dims; }

  void lay_out(Scratch& scratch, bool as_factor, bool as_transposed) {
    is_factor = as_factor;
    rows = scratch.part<Number>(size());
    pairs = as_factor && kInPairs ? scratch.part<Number>(size()) : nullptr;
    transposed = as_transposed ? scratch.part<Number>(size()) : nullptr;
  }

  // From a tensor; where nothing is to be widened, padded, hidden or laid out in panels, its own memory serves as the
  // rows.
  template <typename Scalar>
  void fill(const Kernels<Scalar, Number>& kernels, const Matrix<const Scalar>& from, int64_t dims, const bool* real) {
    const bool is_whole = dims == padded_dims && count == tiles * width &&
                          (!real || std::all_of(real, real + count, [](bool is) { return is; }));
    if (std::is_same_v<Scalar, Number> && is_whole && (!panels || !is_factor || count <= kFewKeys)) {
      first_rows = {reinterpret_cast<const Number*>(from.data), from.layout};
      next_rows = width * from.layout.row;
    } else {
      first_rows = {rows, layout({width, padded_dims})};
      next_rows = width * padded_dims;
      for (int64_t tile = 0, begin = 0; tile < tiles; ++tile, begin += width) {
        const Matrix<const Scalar> of_tile{from.data + begin * from.layout.row, from.layout};
        const Size size{std::min(width, count - begin), dims};
        kernels.copy_rows(of_tile, size, real ? real + begin : nullptr, {rows + tile * next_rows, first_rows.layout},
                          {width, padded_dims});
      }
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const Matrix<const Number> of_tile{first_rows.data + tile * next_rows, first_rows.layout};
      if (pairs) {
        kernels.pair_rows(of_tile, {width, padded_dims}, pairs + tile * width * padded_dims);
      }
      if (transposed) {
        kernels.transpose(of_tile, {width, padded_dims}, kInPairs,
                          {transposed + tile * width * padded_dims, layout({padded_dims, width})});
      }
    }
  }

  // The factor (keys, dims) of a tile, and (dims, keys).
  Matrix<const Number> factor(int64_t tile) const {
    if constexpr (kInPairs) {
      return {pairs + tile * width * padded_dims, in_rows(padded_dims)};
    }
    return {first_rows.data + tile * next_rows, first_rows.layout};
  }
  Matrix<const Number> transposed_factor(int64_t tile) const {
    return {transposed + tile * width * padded_dims, layout({padded_dims, width})};
  }
  // The same tile in a sum of gradients, (dims, keys).
  Matrix<float> sum(float* sums, int64_t tile) const {
    return {sums + tile * width * padded_dims, layout({padded_dims, width})};
  }
  // The keys of a tile up to the last that is there, rounded up: the last tile may hold few.
  int64_t used(int64_t tile) const { return std::min(width, round_up(count - tile * width, kColumns)); }
};

// Some queries of one head, with what a tile needs to know of them.
struct Rows {
  int64_t head, begin, count, padded;  // count queries from `begin` of the tensor on
  int64_t unseen, seen;                // any of them sees keys from `unseen` up to `seen`, which may be none

  // The tiles with keys that any of them sees.
  template <typename Number>
  int64_t first_tile(const KeyTiles<Number>& columns) const {
    return unseen / columns.width;
  }
  template <typename Number>
  int64_t end_tile(const KeyTiles<Number>& columns) const {
    return unseen < seen ? (seen + columns.width - 1) / columns.width : first_tile(columns);
  }
};

template <typename Function>
void for_each_rows(const WorkItem& item, const Call& call, int64_t keys, Function function) {
  for (int64_t head = item.first_head; head < item.first_head + item.heads; ++head) {
    for (int64_t begin = item.query_begin; begin < item.query_end; begin += kQueries) {
      const int64_t count = std::min(kQueries, item.query_end - begin), first = begin - item.query_start;
      const int64_t last = first + count;
      const int64_t unseen = call.causal ? std::clamp<int64_t>(first + call.offset + 1 - call.window, 0, keys) : 0;
      const int64_t seen = call.causal ? std::clamp<int64_t>(last + call.offset, 0, keys) : keys;
      function(Rows{head, begin, count, round_up(count, 4), unseen, seen});
    }
  }
}

// Tile `index` of some rows. row_keys: room for (padded,) where weights are dropped.
template <typename Number>
Tile tile_of(const WorkItem& item, const Call& call, const Rows& rows, const KeyTiles<Number>& columns, int64_t index,
             const int32_t* real_keys, const uint32_t* row_keys) {
  Tile tile{};
  tile.rows = rows.padded;
  tile.real_rows = rows.count;
  tile.columns = columns.used(index);
  tile.layout = columns.layout({rows.padded, columns.width});
  tile.first_column = index * columns.width;
  tile.causal = call.causal;
  tile.window = call.window;
  const int64_t left = columns.count - tile.first_column;
  tile.limit = std::min(left, tile.columns);
  tile.visible = call.causal ? rows.begin - item.query_start + call.offset + 1 - tile.first_column : left;
  tile.real_keys = real_keys ? real_keys + tile.first_column : nullptr;
  tile.scale = call.scale;
  if (call.dropout > 0) {
    const auto threshold = static_cast<uint64_t>(std::min(call.dropout * 4294967296.0, 4294967295.0));
    tile.dropout = {threshold, static_cast<float>(1.0 / (1.0 - call.dropout)), row_keys};
  }
  return tile;
}

inline void fill_dropout_keys(const WorkItem& item, const Call& call, const Rows& rows, uint32_t* keys) {
  for (int64_t i = 0; call.dropout > 0 && i < rows.padded; ++i) {
    keys[i] = dropout_key(call.seed, item.index, rows.head, rows.begin - item.query_start + i);
  }
}

// Keys of a work item up to the last real one.
inline int64_t real_length(const WorkItem& item) {
  int64_t count = item.key_end - item.key_begin;
  while (item.real && count > 0 && !item.real[count - 1]) {
    --count;
  }
  return count;
}

// Which of the first `count` keys are real, as masks of lanes; null where an activation needs none.
inline const int32_t* masks_of_keys(const WorkItem& item, const Call& call, int64_t count, int32_t* masks) {
  if (!item.real || kActivations[call.activation].closed_at_zero ||
      std::all_of(item.real, item.real + count, [](bool real) { return real; })) {
    return nullptr;
  }
  for (int64_t j = 0; j < round_up(count, kColumns); ++j) {
    masks[j] = j < count && item.real[j] ? -1 : 0;
  }
  return masks;
}

}  // namespace reluformer
