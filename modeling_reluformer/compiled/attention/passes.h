// The forward and the backward pass of one work item: see blocks.h.
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

// Rows of a tensor as a first factor with zeros after them; where nothing is to be widened or padded, its own memory.
template <typename Scalar, typename Number>
Matrix<const Number> padded_rows(const Kernels<Scalar, Number>& kernels, const Matrix<const Scalar>& from,
                                 const Size& size, const Size& padded, Number* room) {
  if constexpr (std::is_same_v<Scalar, Number>) {
    if (size.rows == padded.rows && size.columns == padded.columns) {
      return from;
    }
  }
  const Matrix<Number> to{room, kernels.layout(padded)};
  kernels.copy_rows(from, size, nullptr, to, padded);
  return to;
}

// S and T of some rows from sums of u and of u log u.
inline void write_statistics(const RowNumbers& row_sum, const RowNumbers& row_sum_log, const float* scale,
                             const WorkItem& item, const Rows& rows, const float* sums, const float* sums_log) {
  float* total = row_sum.row(item.batch, rows.head, rows.begin);
  float* total_log = row_sum_log.row(item.batch, rows.head, rows.begin);
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
void forward_few(const Kernels<Scalar, Number>& kernels, const WorkItem& item, const Call& call,
                 const Inputs<Scalar>& in, const Outputs<Scalar>& out) {
  const int64_t count = real_length(item);
  float *weights, *output;
  int32_t* masks;
  scratch_of_this_thread().fit([&] {
    weights = scratch_of_this_thread().part<float>(round_up(count, kColumns));
    output = scratch_of_this_thread().part<float>(round_up(call.dims_v, kColumns));
    masks = scratch_of_this_thread().part<int32_t>(round_up(count, kColumns));
  });
  const int32_t* real_keys = masks_of_keys(item, call, count, masks);
  const Matrix<const Scalar> keys = in.key.rows(item.batch, item.key_head, item.key_begin);
  const Matrix<const Scalar> values = in.value.rows(item.batch, item.key_head, item.key_begin);
  const KeyTiles<Number> whole{count, call.dims, false};
  for (int64_t head = item.first_head; head < item.first_head + item.heads; ++head) {
    for (int64_t index = item.query_begin; index < item.query_end; ++index) {
      const int64_t last = index - item.query_start + call.offset;
      const int64_t unseen = call.causal ? std::clamp<int64_t>(last + 1 - call.window, 0, count) : 0;
      const Rows rows{head, index, 1, 1, unseen, count};
      uint32_t key;
      fill_dropout_keys(item, call, rows, &key);
      Tile tile = tile_of(item, call, rows, whole, 0, real_keys, &key);
      // all keys are one tile, without those before the window
      const int64_t skipped = unseen / kColumns * kColumns;
      tile.limit = count - skipped;
      tile.first_column = skipped;
      tile.visible -= skipped;
      tile.real_keys = real_keys ? real_keys + skipped : nullptr;
      const Row<Scalar> row{in.query.row(item.batch, head, index),
                            {keys.data + skipped * keys.layout.row, keys.layout},
                            {values.data + skipped * values.layout.row, values.layout},
                            call.dims,
                            call.dims_v,
                            item.real ? item.real + skipped : nullptr};
      float sum = 0.0f, sum_log = 0.0f;
      kernels.attend_row[call.activation](tile, row, weights, output, call.statistics > 0 ? &sum : nullptr,
                                          call.statistics > 1 ? &sum_log : nullptr);
      const float* scale = in.row_scale.row(item.batch, head, index);
      write_statistics(out.row_sum, out.row_sum_log, scale, item, rows, &sum, &sum_log);
      kernels.write_rows({output, in_rows(call.dims_v)}, scale, {1, call.dims_v},
                         out.output.rows(item.batch, head, index));
    }
  }
}

// Rows (queries, dims) · a tile of keys or values (dims, keys): the scores, or the gradient of the weights.
template <typename Scalar, typename Number>
void multiply_by_keys(const Kernels<Scalar, Number>& kernels, const Tile& tile,
                      const std::type_identity_t<Matrix<const Number>>& rows, const KeyTiles<Number>& keys,
                      int64_t index, float* to) {
  multiply(kernels,
           {tile.rows, tile.columns, keys.padded_dims, rows, keys.transposed_factor(index), {to, tile.layout}, false});
}

template <typename Scalar, typename Number>
void forward_item(const Kernels<Scalar, Number>& kernels, const WorkItem& item, const Call& call,
                  const Inputs<Scalar>& in, const Outputs<Scalar>& out) {
  if (item.query_end - item.query_begin <= kSingleRows) {
    forward_few(kernels, item, call, in, out);
    return;
  }
  Scratch& scratch = scratch_of_this_thread();
  const int64_t count = real_length(item);
  const bool panels = kernels.multiply != nullptr;
  KeyTiles<Number> keys(count, call.dims, panels), values(count, call.dims_v, panels);
  Number *query, *weights;
  float *scores, *output, *sums, *sums_log;
  uint32_t* row_keys;
  int32_t* masks;
  scratch.fit([&] {
    keys.lay_out(scratch, false, true);
    values.lay_out(scratch, true, false);
    query = scratch.part<Number>(kQueries * keys.padded_dims);
    scores = scratch.part<float>(kQueries * keys.width);
    weights =
        std::is_same_v<Number, float> ? reinterpret_cast<Number*>(scores) : scratch.part<Number>(kQueries * keys.width);
    output = scratch.part<float>(kQueries * values.padded_dims);
    sums = scratch.part<float>(kQueries);
    sums_log = scratch.part<float>(kQueries);
    row_keys = scratch.part<uint32_t>(kQueries);
    masks = scratch.part<int32_t>(round_up(count, kColumns));
  });
  const int32_t* real_keys = masks_of_keys(item, call, count, masks);
  keys.fill(kernels, in.key.rows(item.batch, item.key_head, item.key_begin), call.dims, item.real);
  values.fill(kernels, in.value.rows(item.batch, item.key_head, item.key_begin), call.dims_v, item.real);
  for_each_rows(item, call, count, [&](const Rows& rows) {
    const Matrix<const Scalar> of_tensor = in.query.rows(item.batch, rows.head, rows.begin);
    const Matrix<const Number> queries =
        padded_rows(kernels, of_tensor, {rows.count, call.dims}, {rows.padded, keys.padded_dims}, query);
    const Matrix<float> outputs{output, kernels.layout({rows.padded, values.padded_dims})};
    fill_dropout_keys(item, call, rows, row_keys);
    std::fill_n(sums, kQueries, 0.0f);
    std::fill_n(sums_log, kQueries, 0.0f);
    const int64_t first_tile = rows.first_tile(keys), end_tile = rows.end_tile(keys);
    if (first_tile == end_tile) {
      std::fill_n(output, kQueries * values.padded_dims, 0.0f);
    }
    for (int64_t index = first_tile; index < end_tile; ++index) {
      const Tile tile = tile_of(item, call, rows, keys, index, real_keys, row_keys);
      const Matrix<Number> tile_weights{weights, tile.layout};
      multiply_by_keys(kernels, tile, queries, keys, index, scores);
      kernels.weigh[call.activation](tile, scores, weights, call.statistics > 0 ? sums : nullptr,
                                     call.statistics > 1 ? sums_log : nullptr);
      multiply(kernels, {tile.rows, values.padded_dims, tile.columns, tile_weights, values.factor(index), outputs,
                         index > first_tile});
    }
    const float* scale = in.row_scale.row(item.batch, rows.head, rows.begin);
    write_statistics(out.row_sum, out.row_sum_log, scale, item, rows, sums, sums_log);
    kernels.write_rows(outputs, scale, {rows.count, call.dims_v}, out.output.rows(item.batch, rows.head, rows.begin));
  });
}

template <typename Scalar>
struct Gradients {
  Heads<const Scalar> output;       // dO; the last dimension lies side by side
  RowNumbers row_sum, row_sum_log;  // gS, gT; null where there are none
  Heads<Scalar> query, key, value;
};

// Where the gradients of the keys and values of a work item are summed up, (tiles, padded, width) float, if other items
// share its keys; null: they are written at once.
struct KeySums {
  float *key, *value;
};

// Sums of a work item → rows of the gradient of its keys or values; zeros for keys after the last real one.
template <typename Scalar, typename Number>
void write_key_gradient(const Kernels<Scalar, Number>& kernels, const WorkItem& item, int64_t dims, float* sums,
                        const Heads<Scalar>& gradient) {
  const int64_t count = real_length(item), length = item.key_end - item.key_begin;
  const KeyTiles<Number> columns(count, dims, kernels.multiply != nullptr);
  for (int64_t index = 0; index * columns.width < count; ++index) {
    const int64_t first = index * columns.width, used = std::min(columns.width, count - first);
    kernels.write_transposed(columns.sum(sums, index), {used, dims},
                             gradient.rows(item.batch, item.key_head, item.key_begin + first));
  }
  for (int64_t j = count; j < length; ++j) {
    std::memset(static_cast<void*>(gradient.row(item.batch, item.key_head, item.key_begin + j)), 0,
                dims * sizeof(Scalar));
  }
}

// rho_i = r (gS + gT (1 + log r)) and tau_i = r gT
inline void fill_gains(const RowNumbers& row_sum, const RowNumbers& row_sum_log, const float* scale,
                       const WorkItem& item, const Rows& rows, float* rho, float* tau) {
  const float* gain = row_sum.row(item.batch, rows.head, rows.begin);
  const float* gain_log = row_sum_log.row(item.batch, rows.head, rows.begin);
  for (int64_t i = 0; i < rows.padded; ++i) {
    const float r = scale && i < rows.count ? scale[i] : 1.0f, of_log = gain_log && i < rows.count ? gain_log[i] : 0.0f;
    const float of_sum = gain && i < rows.count ? gain[i] : 0.0f;
    rho[i] = r * (of_log == 0.0f ? of_sum : of_sum + of_log * (1.0f + std::log(r)));
    tau[i] = r * of_log;
  }
}

template <typename Scalar, typename Number>
void backward_item(const Kernels<Scalar, Number>& kernels, const WorkItem& item, const Call& call,
                   const Inputs<Scalar>& in, const Gradients<Scalar>& gradients, const KeySums& shared) {
  Scratch& scratch = scratch_of_this_thread();
  const int64_t count = real_length(item);
  const bool panels = kernels.multiply != nullptr;
  KeyTiles<Number> keys(count, call.dims, panels), values(count, call.dims_v, panels);
  constexpr bool is_float = std::is_same_v<Number, float>;
  Number *query, *query_transposed, *incoming, *incoming_transposed, *weights, *rows_of_gradient, *pairs;
  float *scores, *gradient, *grad_query, *rho, *tau;
  KeySums total{};
  uint32_t* row_keys;
  int32_t* masks;
  const int64_t most = std::max(keys.padded_dims, values.padded_dims), area = kQueries * keys.width;
  scratch.fit([&] {
    keys.lay_out(scratch, true, true);
    values.lay_out(scratch, false, true);
    query = scratch.part<Number>(kQueries * most);
    query_transposed = scratch.part<Number>(kQueries * most);
    incoming = scratch.part<Number>(kQueries * most);
    incoming_transposed = scratch.part<Number>(kQueries * most);
    scores = scratch.part<float>(area);
    gradient = scratch.part<float>(area);
    grad_query = scratch.part<float>(kQueries * keys.padded_dims);
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
  const int32_t* real_keys = masks_of_keys(item, call, count, masks);
  keys.fill(kernels, in.key.rows(item.batch, item.key_head, item.key_begin), call.dims, item.real);
  values.fill(kernels, in.value.rows(item.batch, item.key_head, item.key_begin), call.dims_v, item.real);
  for_each_rows(item, call, count, [&](const Rows& rows) {
    const float* scale = in.row_scale.row(item.batch, rows.head, rows.begin);
    const Size padded{round_up(rows.count, kColumns), keys.padded_dims}, padded_v{padded.rows, values.padded_dims};
    const Matrix<const Scalar> of_tensor = in.query.rows(item.batch, rows.head, rows.begin);
    const Matrix<const Number> queries = padded_rows(kernels, of_tensor, {rows.count, call.dims}, padded, query);
    const Matrix<Number> incomings{incoming, kernels.layout(padded_v)};
    kernels.scale_rows(gradients.output.rows(item.batch, rows.head, rows.begin), {rows.count, call.dims_v}, scale,
                       incomings, padded_v);
    // (dims, queries)
    const Matrix<Number> transposed_queries{query_transposed, kernels.layout({keys.padded_dims, kQueries})};
    const Matrix<Number> transposed_incomings{incoming_transposed, kernels.layout({values.padded_dims, kQueries})};
    kernels.transpose(queries, padded, false, transposed_queries);
    kernels.transpose(incomings, padded_v, false, transposed_incomings);
    fill_dropout_keys(item, call, rows, row_keys);
    fill_gains(gradients.row_sum, gradients.row_sum_log, scale, item, rows, rho, tau);
    const int64_t first_tile = rows.first_tile(keys), end_tile = rows.end_tile(keys);
    if (first_tile == end_tile) {
      std::fill_n(grad_query, kQueries * keys.padded_dims, 0.0f);
    }
    const Matrix<float> grad_queries{grad_query, kernels.layout({rows.padded, keys.padded_dims})};
    for (int64_t index = first_tile; index < end_tile; ++index) {
      const Tile tile = tile_of(item, call, rows, keys, index, real_keys, row_keys);
      multiply_by_keys(kernels, tile, queries, keys, index, scores);
      multiply_by_keys(kernels, tile, incomings, values, index, gradient);
      kernels.differentiate[call.activation](tile, scores, gradient, rho, tau, weights, rows_of_gradient, pairs);
      const Matrix<Number> as_rows{rows_of_gradient, tile.layout}, as_pairs{pairs, tile.layout},
          weight_pairs{weights, tile.layout};
      multiply(kernels, {tile.rows, keys.padded_dims, tile.columns, as_rows, keys.factor(index), grad_queries,
                         index > first_tile});
      multiply(kernels, {keys.padded_dims, tile.columns, tile.rows, transposed_queries, as_pairs,
                         keys.sum(total.key, index), true});
      multiply(kernels, {values.padded_dims, tile.columns, tile.rows, transposed_incomings, weight_pairs,
                         values.sum(total.value, index), true});
    }
    kernels.write_rows(grad_queries, nullptr, {rows.count, call.dims},
                       gradients.query.rows(item.batch, rows.head, rows.begin));
  });
  if (!shared.key) {
    write_key_gradient(kernels, item, call.dims, total.key, gradients.key);
    write_key_gradient(kernels, item, call.dims_v, total.value, gradients.value);
  }
}

}  // namespace reluformer
