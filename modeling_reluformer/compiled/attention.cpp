// ReLU attention in blocks of queries on a CPU: the loop of attention_blockwise.py, which has the formulas, compiled.
//
// Same blocks, same products (oneDNN's, by torch's own operator), float32 and bfloat16. What Python cannot do there: share
// the heads out among torch's own threads, and pass once over a block of weights for statistics, dropout and gradient.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <tuple>
#include <vector>

#include "rows.h"

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Edges = at::IntArrayRef;

struct Settings {
  bool finite;
  double scale;
  bool causal;
  int64_t offset;
  double dropout;
  int64_t seed;
  int64_t block_bytes, largest_block, smallest_block;

  int64_t block_rows(int64_t keys, int64_t bytes_per_score) const {
    const int64_t fitting = block_bytes / (bytes_per_score * std::max<int64_t>(1, keys));
    return std::min(largest_block, std::max(smallest_block, fitting));
  }

  // How many of `keys` row `row` of the sequence sees.
  int64_t visible(int64_t row, int64_t keys) const {
    return causal ? std::clamp<int64_t>(row + offset + 1, 0, keys) : keys;
  }

  reluformer::Dropout dropout_of(int64_t piece, int64_t head, int64_t row) const {
    uint64_t key = reluformer::mix(static_cast<uint64_t>(seed) + 0x9E3779B97F4A7C15u);
    for (int64_t part : {piece, head, row}) {
      key = reluformer::mix(key ^ (static_cast<uint64_t>(part) + 0x9E3779B97F4A7C15u));
    }
    const auto threshold = static_cast<uint32_t>(std::min(dropout * 4294967296.0, 4294967295.0));
    return {static_cast<uint32_t>(key >> 32), threshold, static_cast<float>(1.0 / (1.0 - dropout))};
  }
};

// One head of keys of one sequence, with the query heads that share it.
struct Piece {
  int64_t index, batch, key_head, first_head, heads, query_begin, query_end, key_begin, key_end;
};

// Some queries of one head: rows [begin, end) of the tensor, the first of them row `first` of its sequence.
struct Block {
  int64_t head, begin, end, first, seen;
};

std::vector<Piece> pieces_of(const Tensor& query, const Tensor& key, Edges query_edges, Edges key_edges) {
  std::vector<Piece> pieces;
  const int64_t key_heads = key.size(1), group = query.size(1) / key_heads;
  const int64_t spans = query_edges.empty() ? query.size(0) : static_cast<int64_t>(query_edges.size()) - 1;
  for (int64_t span = 0; span < spans; ++span) {
    for (int64_t head = 0; head < key_heads; ++head) {
      Piece piece{span * key_heads + head, span, head, head * group, group, 0, query.size(2), 0, key.size(2)};
      if (!query_edges.empty()) {
        piece.batch = 0;
        std::tie(piece.query_begin, piece.query_end) = std::pair(query_edges[span], query_edges[span + 1]);
        std::tie(piece.key_begin, piece.key_end) = std::pair(key_edges[span], key_edges[span + 1]);
      }
      pieces.push_back(piece);
    }
  }
  return pieces;
}

template <typename Function>
void for_each_block(const Piece& piece, int64_t keys, int64_t bytes_per_score, const Settings& settings, Function f) {
  const int64_t size = settings.block_rows(keys, bytes_per_score);
  for (int64_t head = piece.first_head; head < piece.first_head + piece.heads; ++head) {
    for (int64_t begin = piece.query_begin; begin < piece.query_end; begin += size) {
      const int64_t end = std::min(begin + size, piece.query_end);
      f(Block{head, begin, end, begin - piece.query_begin, settings.visible(end - piece.query_begin - 1, keys)});
    }
  }
}

// Whole pieces for torch's threads, the next one for whoever is free; with fewer pieces than threads each product is shared.
template <typename Function>
void for_each_piece(const std::vector<Piece>& pieces, Function function) {
  const auto count = static_cast<int64_t>(pieces.size());
  if (count < at::get_num_threads()) {
    std::for_each(pieces.begin(), pieces.end(), function);
    return;
  }
  std::atomic<int64_t> next{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    at::AutoDispatchBelowADInplaceOrView below;
    for (int64_t index = next++; index < count; index = next++) {
      function(pieces[index]);
    }
  });
}

// (m, k) and (n, k) → first @ second.T; its ReLU if asked for.
Tensor product(const Tensor& first, const Tensor& second, bool relu = false) {
  using Linear =
      Tensor(const Tensor&, const Tensor&, const MaybeTensor&, std::string_view, c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto linear =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Linear>();
  if (first.numel() == 0 || second.numel() == 0) {
    return at::zeros({first.size(0), second.size(0)}, first.options());
  }
  return linear.call(first, second, std::nullopt, relu ? "relu" : "none", c10::List<std::optional<at::Scalar>>(), "");
}

// u of a block: oneDNN's ReLU makes zeros of NaN, torch's lets them through.
Tensor weights_of(const Tensor& scaled_query, const Tensor& keys, const Settings& settings) {
  return settings.finite ? product(scaled_query, keys, true) : product(scaled_query, keys).relu_();
}

struct KeysAndValues {
  Tensor keys, values;
};

// Side by side in memory; padding behind the last real key is cut off, other padding is zero: it gets no weight and no gradient.
KeysAndValues keys_and_values(const Piece& piece, const Tensor& key, const Tensor& value, const MaybeTensor& mask) {
  auto part = [&](const Tensor& tensor) {
    return tensor.select(0, piece.batch).select(0, piece.key_head).slice(0, piece.key_begin, piece.key_end);
  };
  Tensor keys = part(key), values = part(value);
  if (!mask) {
    return {keys.contiguous(), values.contiguous()};
  }
  const Tensor real = mask->select(0, piece.batch).slice(0, piece.key_begin, piece.key_end).contiguous();
  const bool* visible = real.const_data_ptr<bool>();
  int64_t end = real.numel();
  while (end > 0 && !visible[end - 1]) {
    --end;
  }
  keys = keys.slice(0, 0, end);
  values = values.slice(0, 0, end).contiguous();
  if (std::all_of(visible, visible + end, [](bool seen) { return seen; })) {
    return {keys.contiguous(), values};
  }
  return {keys.masked_fill(real.slice(0, 0, end).logical_not().unsqueeze(1), 0.0), values};
}

Tensor rows_of(const Tensor& tensor, const Piece& piece, const Block& block) {
  return tensor.select(0, piece.batch).select(0, block.head).slice(0, block.begin, block.end);
}

// (rows, 1), float32
MaybeTensor row_scale_of(const MaybeTensor& row_scale, const Piece& piece, const Block& block) {
  if (!row_scale) {
    return std::nullopt;
  }
  const int64_t head = row_scale->size(1) > 1 ? block.head : 0;
  return row_scale->select(0, piece.batch).select(0, head).slice(0, block.begin, block.end).contiguous().unsqueeze(1);
}

float* data_of(const MaybeTensor& tensor) {
  return tensor ? tensor->mutable_data_ptr<float>() : nullptr;
}

// S and T of the rows of a block, (rows,) each or none, and the weights hidden and dropped, in place.
template <typename Scalar>
void finish_weights(
    const Tensor& weights, const Piece& piece, const Block& block, const Settings& settings, const MaybeTensor& row_scale,
    float* row_sum, float* row_sum_log) {
  auto* data = weights.mutable_data_ptr<Scalar>();
  const float* scale = row_scale ? row_scale->const_data_ptr<float>() : nullptr;
  for (int64_t i = 0; i < block.end - block.begin; ++i, data += block.seen) {
    const int64_t visible = settings.visible(block.first + i, block.seen);
    reluformer::hide_row(data, block.seen, visible);
    const float r = scale ? scale[i] : 1.0f;
    float sum, sum_log;
    if (row_sum_log) {
      reluformer::sum_row<true>(data, visible, sum, sum_log);
      row_sum_log[i] = r * (sum_log + std::log(r) * sum);
    } else if (row_sum) {
      reluformer::sum_row<false>(data, visible, sum, sum_log);
    }
    if (row_sum) {
      row_sum[i] = r * sum;
    }
    if (settings.dropout > 0) {
      reluformer::drop_row(data, visible, settings.dropout_of(piece.index, block.head, block.first + i));
    }
  }
}

// See differentiate_row: gains are rho_i = r (gS + gT (1 + log r)) and tau_i = r gT.
template <typename Scalar>
void differentiate(
    const Tensor& gradient, const Tensor& weights, const Piece& piece, const Block& block, const Settings& settings,
    const MaybeTensor& row_scale, const float* grad_sum, const float* grad_sum_log) {
  auto* gradients = gradient.mutable_data_ptr<Scalar>();
  auto* data = weights.mutable_data_ptr<Scalar>();
  const float* scale = row_scale ? row_scale->const_data_ptr<float>() : nullptr;
  const bool drop = settings.dropout > 0;
  for (int64_t i = 0; i < block.end - block.begin; ++i, data += block.seen, gradients += block.seen) {
    const int64_t visible = settings.visible(block.first + i, block.seen);
    reluformer::hide_row(data, block.seen, visible);
    reluformer::hide_row(gradients, block.seen, visible);
    const float r = scale ? scale[i] : 1.0f;
    const float gain_log = grad_sum_log ? grad_sum_log[i] : 0.0f;
    const float rho = grad_sum ? r * (grad_sum[i] + gain_log * (1.0f + std::log(r))) : 0.0f, tau = r * gain_log;
    const auto dropout = drop ? settings.dropout_of(piece.index, block.head, block.first + i) : reluformer::Dropout{};
    // a row below the entropy margin has tau = 0 and needs no logarithm
    if (tau != 0.0f) {
      drop ? reluformer::differentiate_row<true, true>(gradients, data, visible, rho, tau, dropout)
           : reluformer::differentiate_row<true, false>(gradients, data, visible, rho, tau, dropout);
    } else {
      drop ? reluformer::differentiate_row<false, true>(gradients, data, visible, rho, tau, dropout)
           : reluformer::differentiate_row<false, false>(gradients, data, visible, rho, tau, dropout);
    }
  }
}

// statistics: 0 none, 1 sum, 2 sum and entropy. query_edges, key_edges: cu_seqlens, or empty.
std::tuple<Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& row_scale, const MaybeTensor& mask,
    Edges query_edges, Edges key_edges, bool finite, double scale, bool causal, int64_t offset, double dropout, int64_t seed,
    int64_t statistics, Edges block_limits) {
  const Settings settings{finite, scale, causal, offset, dropout, seed, block_limits[0], block_limits[1], block_limits[2]};
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
  const Tensor output = at::empty({batch, queries, heads, value.size(3)}, query.options()).transpose(1, 2);
  const auto wide = query.options().dtype(at::kFloat);
  const Tensor row_sum = at::empty(statistics > 0 ? at::IntArrayRef{batch, heads, queries} : at::IntArrayRef{0}, wide);
  const Tensor row_sum_log = at::empty(statistics > 1 ? at::IntArrayRef{batch, heads, queries} : at::IntArrayRef{0}, wide);
  for_each_piece(pieces_of(query, key, query_edges, key_edges), [&](const Piece& piece) {
    const auto [keys, values] = keys_and_values(piece, key, value, mask);
    for_each_block(piece, keys.size(0), query.element_size(), settings, [&](const Block& block) {
      const MaybeTensor scales = row_scale_of(row_scale, piece, block);
      const Tensor weights = weights_of(rows_of(query, piece, block) * settings.scale, keys.slice(0, 0, block.seen), settings);
      auto of = [&](const Tensor& tensor, int64_t level) {
        return statistics >= level ? rows_of(tensor, piece, block).mutable_data_ptr<float>() : nullptr;
      };
      AT_DISPATCH_SWITCH(query.scalar_type(), "relu_attention",
          AT_DISPATCH_CASE(at::kFloat, [&] { finish_weights<scalar_t>(weights, piece, block, settings, scales, of(row_sum, 1), of(row_sum_log, 2)); })
          AT_DISPATCH_CASE(at::kBFloat16, [&] { finish_weights<scalar_t>(weights, piece, block, settings, scales, of(row_sum, 1), of(row_sum_log, 2)); }));
      Tensor target = rows_of(output, piece, block);
      const Tensor attended = product(weights, values.slice(0, 0, block.seen).t());
      scales ? at::mul_out(target, attended, scales->to(attended.scalar_type())) : target.copy_(attended);
    });
  });
  return {output, row_sum, row_sum_log};
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const MaybeTensor& grad_sum, const MaybeTensor& grad_sum_log, const Tensor& query,
    const Tensor& key, const Tensor& value, const MaybeTensor& row_scale, const MaybeTensor& mask, Edges query_edges,
    Edges key_edges, bool finite, double scale, bool causal, int64_t offset, double dropout, int64_t seed, Edges block_limits) {
  const Settings settings{finite, scale, causal, offset, dropout, seed, block_limits[0], block_limits[1], block_limits[2]};
  auto like = [](const Tensor& tensor) {
    return at::empty({tensor.size(0), tensor.size(2), tensor.size(1), tensor.size(3)}, tensor.options()).transpose(1, 2);
  };
  Tensor grad_query = like(query), grad_key = like(key), grad_value = like(value);
  for_each_piece(pieces_of(query, key, query_edges, key_edges), [&](const Piece& piece) {
    const auto [keys, values] = keys_and_values(piece, key, value, mask);
    const int64_t length = piece.key_end - piece.key_begin;
    const auto wide = query.options().dtype(at::kFloat);
    Tensor key_sum = at::zeros({keys.size(1), length}, wide), value_sum = at::zeros({values.size(1), length}, wide);
    for_each_block(piece, keys.size(0), query.element_size(), settings, [&](const Block& block) {
      const MaybeTensor scales = row_scale_of(row_scale, piece, block);
      const Tensor scaled_query = rows_of(query, piece, block) * settings.scale;
      Tensor incoming = rows_of(grad_output, piece, block);
      incoming = scales ? incoming * scales->to(incoming.scalar_type()) : incoming.contiguous();
      const Tensor weights = weights_of(scaled_query, keys.slice(0, 0, block.seen), settings);
      const Tensor gradient = product(incoming, values.slice(0, 0, block.seen));
      auto of = [&](const MaybeTensor& tensor) {
        return tensor ? rows_of(*tensor, piece, block).const_data_ptr<float>() : nullptr;
      };
      AT_DISPATCH_SWITCH(query.scalar_type(), "relu_attention_backward",
          AT_DISPATCH_CASE(at::kFloat, [&] { differentiate<scalar_t>(gradient, weights, piece, block, settings, scales, of(grad_sum), of(grad_sum_log)); })
          AT_DISPATCH_CASE(at::kBFloat16, [&] { differentiate<scalar_t>(gradient, weights, piece, block, settings, scales, of(grad_sum), of(grad_sum_log)); }));
      Tensor target = rows_of(grad_query, piece, block);
      target.copy_(product(gradient, keys.slice(0, 0, block.seen).t()).mul_(settings.scale));
      key_sum.slice(1, 0, block.seen).add_(product(scaled_query.t(), gradient.t()));
      value_sum.slice(1, 0, block.seen).add_(product(incoming.t(), weights.t()));
    });
    auto part = [&](const Tensor& tensor) {
      return tensor.select(0, piece.batch).select(0, piece.key_head).slice(0, piece.key_begin, piece.key_end);
    };
    part(grad_key).copy_(key_sum.t());
    part(grad_value).copy_(value_sum.t());
  });
  return {grad_query, grad_key, grad_value};
}

}  // namespace

TORCH_LIBRARY(reluformer_cpu, library) {
  library.def(
      "forward(Tensor query, Tensor key, Tensor value, Tensor? row_scale, Tensor? mask, int[] query_edges, int[] key_edges, "
      "bool finite, float scale, bool causal, int offset, float dropout, int seed, int statistics, int[] block_limits) -> (Tensor, Tensor, Tensor)");
  library.def(
      "backward(Tensor grad_output, Tensor? grad_sum, Tensor? grad_sum_log, Tensor query, Tensor key, Tensor value, "
      "Tensor? row_scale, Tensor? mask, int[] query_edges, int[] key_edges, bool finite, float scale, bool causal, int offset, float dropout, "
      "int seed, int[] block_limits) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(reluformer_cpu, CPU, library) {
  library.impl("forward", forward);
  library.impl("backward", backward);
}
