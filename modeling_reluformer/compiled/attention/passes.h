// The forward and the backward pass of one piece: see blocks.h.
#pragma once

#include "blocks.h"

namespace reluformer {

template <typename Scalar>
struct Inputs {
  Heads<const Scalar> query, key, value;
  RowNumbers row_scale;  // heads may have a stride of 0
};

template <typename Scalar>
struct Outputs {
  Heads<Scalar> output;
  RowNumbers row_sum, row_sum_log;
};

// A first factor of a product.
template <typename Number>
struct Factor {
  const Number* data;
  int64_t stride;
};

// Rows of a tensor with zeros behind them; where nothing is to be widened or padded, its own memory.
template <typename Scalar, typename Number>
Factor<Number> padded_rows(const Kernels<Scalar, Number>& kernels, const Heads<const Scalar>& tensor, const Piece& piece, const Rows& rows,
                           int64_t dims, int64_t padded_count, Number* room, int64_t padded) {
  const Scalar* from = tensor.row(piece.batch, rows.head, rows.begin);
  if constexpr (std::is_same_v<Scalar, Number>) {
    if (rows.count == padded_count && dims == padded) {
      return {from, tensor.stride};
    }
  }
  kernels.copy_rows(from, tensor.stride, rows.count, dims, nullptr, room, padded_count, padded);
  return {room, padded};
}

// S and T of some rows from sums of u and of u log u.
inline void write_statistics(const RowNumbers& row_sum, const RowNumbers& row_sum_log, const float* scale, const Piece& piece,
                             const Rows& rows, const float* sums, const float* sums_log) {
  float* total = row_sum.row(piece.batch, rows.head, rows.begin);
  float* total_log = row_sum_log.row(piece.batch, rows.head, rows.begin);
  for (int64_t i = 0; total && i < rows.count; ++i) {
    const float r = scale ? scale[i] : 1.0f;
    total[i] = r * sums[i];
    if (total_log) {
      total_log[i] = r * (sums_log[i] + std::log(r) * sums[i]);
    }
  }
}

// Few queries: each passes over keys and values as they lie in memory.
template <typename Scalar, typename Number>
void forward_few(const Kernels<Scalar, Number>& kernels, const Piece& piece, const Call& call, const Inputs<Scalar>& in, const Outputs<Scalar>& out) {
  const int64_t count = real_length(piece);
  float *weights, *output;
  int32_t* masks;
  scratch_of_this_thread().fit([&] {
    weights = scratch_of_this_thread().part<float>(round_up(count, kColumns));
    output = scratch_of_this_thread().part<float>(round_up(call.dims_v, kColumns));
    masks = scratch_of_this_thread().part<int32_t>(round_up(count, kColumns));
  });
  const int32_t* real_keys = masks_of_keys(piece, call, count, masks);
  const Scalar* keys = in.key.row(piece.batch, piece.key_head, piece.key_begin);
  const Scalar* values = in.value.row(piece.batch, piece.key_head, piece.key_begin);
  const Columns<Number> whole{count, call.dims};
  for (int64_t head = piece.first_head; head < piece.first_head + piece.heads; ++head) {
    for (int64_t row = piece.query_begin; row < piece.query_end; ++row) {
      const Rows rows{head, row, 1, 1, count};
      uint32_t key;
      fill_dropout_keys(piece, call, rows, &key);
      Tile tile = tile_of(piece, call, rows, whole, 0, real_keys, &key);
      tile.limit = count;  // all keys are one tile
      float sum = 0.0f, sum_log = 0.0f;
      kernels.attend_row[call.activation](
          tile, in.query.row(piece.batch, head, row), keys, in.key.stride, values, in.value.stride, call.dims, call.dims_v,
          piece.real, weights, output, call.statistics > 0 ? &sum : nullptr, call.statistics > 1 ? &sum_log : nullptr);
      const float* scale = in.row_scale.row(piece.batch, head, row);
      write_statistics(out.row_sum, out.row_sum_log, scale, piece, rows, &sum, &sum_log);
      kernels.write_rows(output, call.dims_v, scale, 1, call.dims_v, out.output.row(piece.batch, head, row), out.output.stride);
    }
  }
}

template <typename Scalar, typename Number>
void forward_piece(const Kernels<Scalar, Number>& kernels, const Piece& piece, const Call& call, const Inputs<Scalar>& in, const Outputs<Scalar>& out) {
  if (piece.query_end - piece.query_begin <= kSingleRows) {
    forward_few(kernels, piece, call, in, out);
    return;
  }
  Scratch& scratch = scratch_of_this_thread();
  const int64_t count = real_length(piece);
  Columns<Number> keys(count, call.dims), values(count, call.dims_v);
  Number *query, *weights;
  float *scores, *output, *sums, *sums_log;
  uint32_t* row_keys;
  int32_t* masks;
  scratch.fit([&] {
    keys.lay_out(scratch, false, true);
    values.lay_out(scratch, true, false);
    query = scratch.part<Number>(kQueries * keys.padded);
    scores = scratch.part<float>(kQueries * keys.width);
    weights = std::is_same_v<Number, float> ? reinterpret_cast<Number*>(scores) : scratch.part<Number>(kQueries * keys.width);
    output = scratch.part<float>(kQueries * values.padded);
    sums = scratch.part<float>(kQueries);
    sums_log = scratch.part<float>(kQueries);
    row_keys = scratch.part<uint32_t>(kQueries);
    masks = scratch.part<int32_t>(round_up(count, kColumns));
  });
  const int32_t* real_keys = masks_of_keys(piece, call, count, masks);
  keys.fill(kernels, in.key.row(piece.batch, piece.key_head, piece.key_begin), in.key.stride, call.dims, piece.real);
  values.fill(kernels, in.value.row(piece.batch, piece.key_head, piece.key_begin), in.value.stride, call.dims_v, piece.real);
  for_each_rows(piece, call, count, [&](const Rows& rows) {
    const Factor<Number> queries = padded_rows(kernels, in.query, piece, rows, call.dims, rows.padded, query, keys.padded);
    fill_dropout_keys(piece, call, rows, row_keys);
    std::fill_n(sums, kQueries, 0.0f);
    std::fill_n(sums_log, kQueries, 0.0f);
    if (rows.seen == 0) {
      std::fill_n(output, kQueries * values.padded, 0.0f);
    }
    for (int64_t index = 0; index * keys.width < rows.seen; ++index) {
      Tile tile = tile_of(piece, call, rows, keys, index, real_keys, row_keys);
      multiply(tile.rows, tile.columns, keys.padded, queries.data, queries.stride, keys.tile(keys.transposed, index), keys.width, scores, keys.width, false);
      kernels.weigh[call.activation](tile, scores, weights, call.statistics > 0 ? sums : nullptr, call.statistics > 1 ? sums_log : nullptr);
      multiply(tile.rows, values.padded, tile.columns, weights, keys.width, values.factor(index), values.factor_stride(), output, values.padded, index > 0);
    }
    const float* scale = in.row_scale.row(piece.batch, rows.head, rows.begin);
    write_statistics(out.row_sum, out.row_sum_log, scale, piece, rows, sums, sums_log);
    kernels.write_rows(output, values.padded, scale, rows.count, call.dims_v, out.output.row(piece.batch, rows.head, rows.begin), out.output.stride);
  });
}

template <typename Scalar>
struct Gradients {
  Heads<const Scalar> output;              // dO; the last dimension lies side by side
  RowNumbers row_sum, row_sum_log;         // gS, gT; null where there are none
  Heads<Scalar> query, key, value;
};

// Where the gradients of the keys and values of a piece are summed up, (tiles, padded, width) float, if other pieces share its keys;
// null: they are written at once.
struct KeySums {
  float *key, *value;
};

// Sums of a piece → rows of the gradient of its keys or values; zeros for keys behind the last real one.
template <typename Scalar, typename Number>
void write_key_gradient(const Kernels<Scalar, Number>& kernels, const Piece& piece, int64_t dims, const float* sums, const Heads<Scalar>& gradient) {
  const int64_t count = real_length(piece), length = piece.key_end - piece.key_begin;
  const Columns<Number> columns(count, dims);
  for (int64_t index = 0; index * columns.width < count; ++index) {
    const int64_t first = index * columns.width, used = std::min(columns.width, count - first);
    kernels.write_transposed(sums + first * columns.padded, columns.width, used, dims,
                             gradient.row(piece.batch, piece.key_head, piece.key_begin + first), gradient.stride);
  }
  for (int64_t j = count; j < length; ++j) {
    std::memset(static_cast<void*>(gradient.row(piece.batch, piece.key_head, piece.key_begin + j)), 0, dims * sizeof(Scalar));
  }
}

// rho_i = r (gS + gT (1 + log r)) and tau_i = r gT
inline void fill_gains(const RowNumbers& row_sum, const RowNumbers& row_sum_log, const float* scale, const Piece& piece,
                       const Rows& rows, float* rho, float* tau) {
  const float* gain = row_sum.row(piece.batch, rows.head, rows.begin);
  const float* gain_log = row_sum_log.row(piece.batch, rows.head, rows.begin);
  for (int64_t i = 0; i < rows.padded; ++i) {
    const float r = scale && i < rows.count ? scale[i] : 1.0f, of_log = gain_log && i < rows.count ? gain_log[i] : 0.0f;
    const float of_sum = gain && i < rows.count ? gain[i] : 0.0f;
    rho[i] = r * (of_log == 0.0f ? of_sum : of_sum + of_log * (1.0f + std::log(r)));
    tau[i] = r * of_log;
  }
}

template <typename Scalar, typename Number>
void backward_piece(const Kernels<Scalar, Number>& kernels, const Piece& piece, const Call& call, const Inputs<Scalar>& in,
                    const Gradients<Scalar>& gradients, const KeySums& shared) {
  Scratch& scratch = scratch_of_this_thread();
  const int64_t count = real_length(piece);
  Columns<Number> keys(count, call.dims), values(count, call.dims_v);
  constexpr bool is_float = std::is_same_v<Number, float>;
  Number *query, *query_transposed, *incoming, *incoming_transposed, *weights, *rows_of_gradient, *pairs;
  float *scores, *gradient, *grad_query, *rho, *tau;
  KeySums total{};
  uint32_t* row_keys;
  int32_t* masks;
  const int64_t most = round_up(std::max(keys.padded, values.padded), kColumns), area = kQueries * keys.width;
  scratch.fit([&] {
    keys.lay_out(scratch, true, true);
    values.lay_out(scratch, false, true);
    query = scratch.part<Number>(kQueries * most);
    query_transposed = scratch.part<Number>(kQueries * most);
    incoming = scratch.part<Number>(kQueries * most);
    incoming_transposed = scratch.part<Number>(kQueries * most);
    scores = scratch.part<float>(area);
    gradient = scratch.part<float>(area);
    grad_query = scratch.part<float>(kQueries * keys.padded);
    weights = is_float ? reinterpret_cast<Number*>(scores) : scratch.part<Number>(area);
    pairs = is_float ? reinterpret_cast<Number*>(gradient) : scratch.part<Number>(area);
    rows_of_gradient = is_float ? pairs : scratch.part<Number>(area);
    rho = scratch.part<float>(kQueries);
    tau = scratch.part<float>(kQueries);
    row_keys = scratch.part<uint32_t>(kQueries);
    masks = scratch.part<int32_t>(round_up(count, kColumns));
    total.key = shared.key ? shared.key : scratch.part<float>(keys.size());
    total.value = shared.value ? shared.value : scratch.part<float>(values.size());
  });
  std::fill_n(total.key, keys.size(), 0.0f);
  std::fill_n(total.value, values.size(), 0.0f);
  const int32_t* real_keys = masks_of_keys(piece, call, count, masks);
  keys.fill(kernels, in.key.row(piece.batch, piece.key_head, piece.key_begin), in.key.stride, call.dims, piece.real);
  values.fill(kernels, in.value.row(piece.batch, piece.key_head, piece.key_begin), in.value.stride, call.dims_v, piece.real);
  for_each_rows(piece, call, count, [&](const Rows& rows) {
    const float* scale = in.row_scale.row(piece.batch, rows.head, rows.begin);
    const int64_t sixteens = round_up(rows.count, kColumns);
    const Factor<Number> queries = padded_rows(kernels, in.query, piece, rows, call.dims, sixteens, query, keys.padded);
    kernels.scale_rows(gradients.output.row(piece.batch, rows.head, rows.begin), gradients.output.stride, rows.count, call.dims_v, scale, incoming, sixteens, values.padded);
    kernels.transpose(queries.data, sixteens, keys.padded, queries.stride, false, query_transposed, kQueries);
    kernels.transpose(incoming, sixteens, values.padded, values.padded, false, incoming_transposed, kQueries);
    fill_dropout_keys(piece, call, rows, row_keys);
    fill_gains(gradients.row_sum, gradients.row_sum_log, scale, piece, rows, rho, tau);
    if (rows.seen == 0) {
      std::fill_n(grad_query, kQueries * keys.padded, 0.0f);
    }
    for (int64_t index = 0; index * keys.width < rows.seen; ++index) {
      const Tile tile = tile_of(piece, call, rows, keys, index, real_keys, row_keys);
      const int64_t at = index * keys.width;
      multiply(tile.rows, tile.columns, keys.padded, queries.data, queries.stride, keys.tile(keys.transposed, index), keys.width, scores, keys.width, false);
      multiply(tile.rows, tile.columns, values.padded, incoming, values.padded, values.tile(values.transposed, index), keys.width, gradient, keys.width, false);
      kernels.differentiate[call.activation](tile, scores, gradient, rho, tau, weights, rows_of_gradient, pairs);
      multiply(tile.rows, keys.padded, tile.columns, rows_of_gradient, keys.width, keys.factor(index), keys.factor_stride(), grad_query, keys.padded, index > 0);
      multiply(keys.padded, tile.columns, tile.rows, query_transposed, kQueries, pairs, keys.width, total.key + at * keys.padded, keys.width, true);
      multiply(values.padded, tile.columns, tile.rows, incoming_transposed, kQueries, weights, keys.width, total.value + at * values.padded, keys.width, true);
    }
    kernels.write_rows(grad_query, keys.padded, nullptr, rows.count, call.dims, gradients.query.row(piece.batch, rows.head, rows.begin), gradients.query.stride);
  });
  if (!shared.key) {
    write_key_gradient(kernels, piece, call.dims, total.key, gradients.key);
    write_key_gradient(kernels, piece, call.dims_v, total.value, gradients.value);
  }
}

}  // namespace reluformer
