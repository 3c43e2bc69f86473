// `reluformer_cpu::attention`: point-wise attention on a CPU as one operator of torch, with its derivative.
// blockwise.py is the same in Python; passes.h has the work of one head.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "differentiation.h"
#include "instruction_sets.h"
#include "passes.h"

namespace {

using reluformer::Call;
using reluformer::Heads;
using reluformer::RowNumbers;
using reluformer::WorkItem;

// Below this many multiplications and additions a second thread costs more than it gains.
constexpr double kWorkOfAThread = 1 << 18;

// Whether this processor and torch compute a dtype. With AVX-512 the products are oneDNN's small ones. Others do not
// need it, but switching it off means the same on every processor.
bool supports(at::ScalarType dtype) {
  if (reluformer::chosen_set() == nullptr || !at::globalContext().userEnabledMkldnn()) {
    return false;
  }
  return dtype == at::kFloat || dtype == at::kBFloat16;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const reluformer::InstructionSet& set : reluformer::instruction_sets()) {
    names.push_back(set.name);
  }
  return names;
}

// Returns the name of the set that computes now. For tests, which compare all that a processor has.
std::string choose_instruction_set(std::string_view name) {
  const auto& sets = reluformer::instruction_sets();
  const auto match = std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return set.name == name; });
  TORCH_CHECK_VALUE(match != sets.end(), "this processor has no instruction set '", name, "'.");
  reluformer::chosen_set() = &*match;
  return reluformer::chosen_set()->name;
}

std::vector<std::string> activations() {
  std::vector<std::string> names;
  for (const reluformer::Activation& activation : reluformer::kActivations) {
    names.push_back(activation.name);
  }
  return names;
}

// The number of an activation; Python asks for no other.
int64_t activation_of(std::string_view name) {
#define RELUFORMER_ACTIVATION_NAME(H, name, closed_at_zero) name,
  return reluformer::number_of({RELUFORMER_ACTIVATIONS(RELUFORMER_ACTIVATION_NAME)}, name);
}

bool closed_at_zero(std::string_view name) { return reluformer::kActivations[activation_of(name)].closed_at_zero; }

bool fits(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& row_scale,
          const MaybeTensor& mask) {
  auto is_one = [&](const Tensor& tensor) {
    return tensor.dim() == 4 && tensor.scalar_type() == query.scalar_type() && tensor.device().is_cpu();
  };
  if (!is_one(query) || !is_one(key) || !is_one(value) || !supports(query.scalar_type())) {
    return false;
  }
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2), key_heads = key.size(1),
                keys = key.size(2);
  if (key.size(0) != batch || key.size(3) != query.size(3) || query.size(3) == 0 || value.size(3) == 0 ||
      key_heads == 0 || heads % key_heads) {
    return false;
  }
  for (int64_t dim : {0, 1, 2}) {
    if (value.size(dim) != key.size(dim)) {
      return false;
    }
  }
  if (row_scale && (row_scale->dim() != 3 || row_scale->scalar_type() != at::kFloat || row_scale->size(0) != batch ||
                    (row_scale->size(1) != 1 && row_scale->size(1) != heads) || row_scale->size(2) != queries)) {
    return false;
  }
  return !mask ||
         (mask->dim() == 2 && mask->scalar_type() == at::kBool && mask->size(0) == batch && mask->size(1) == keys);
}

Tensor side_by_side(const Tensor& tensor) { return tensor.stride(3) == 1 ? tensor : tensor.contiguous(); }

template <typename Scalar>
Heads<Scalar> heads_of(const Tensor& tensor) {
  using Plain = std::remove_const_t<Scalar>;
  auto* data = const_cast<Plain*>(static_cast<const Plain*>(tensor.const_data_ptr()));
  return {data, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

RowNumbers numbers_of(const MaybeTensor& tensor) {
  if (!tensor || tensor->numel() == 0) {
    return {nullptr, 0, 0};
  }
  return {const_cast<float*>(tensor->const_data_ptr<float>()), tensor->stride(0),
          tensor->size(1) > 1 ? tensor->stride(1) : 0};
}

// (batch, heads, length, dims) that lies in memory as (batch, length, heads, dims), as projections of a model want it
Tensor empty_like_heads(const Tensor& tensor, c10::SymInt dims) {
  return at::empty_symint({tensor.sym_size(0), tensor.sym_size(2), tensor.sym_size(1), std::move(dims)},
                          tensor.options())
      .transpose(1, 2);
}

// cu_seqlens, which a compiled graph has not looked at
std::vector<int64_t> edges_of(const MaybeTensor& tensor, int64_t length) {
  if (!tensor) {
    return {};
  }
  const Tensor wide = tensor->to(at::kLong).contiguous();
  std::vector<int64_t> edges{wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel()};
  TORCH_CHECK_VALUE(
      !edges.empty() && edges.front() == 0 && edges.back() == length && std::is_sorted(edges.begin(), edges.end()),
      "cu_seqlens must rise from 0 to ", length, ", the length of its tensor; got ", *tensor);
  return edges;
}

// One for each head of keys of each sequence; with fewer of them than threads, each is cut into ranges of queries.
struct WorkItems {
  std::vector<WorkItem> all;
  int64_t chunks = 1;  // neighbours in `all` that share their keys
};

WorkItems items_of(const Tensor& query, const Tensor& key, const bool* mask, const MaybeTensor& edges_q,
                   const MaybeTensor& edges_k) {
  const std::vector<int64_t> query_edges = edges_of(edges_q, query.size(2)), key_edges = edges_of(edges_k, key.size(2));
  TORCH_CHECK_VALUE(
      query_edges.size() == key_edges.size() && (!edges_q || query.size(0) == 1),
      "cu_seqlens_q and cu_seqlens_k must be given together, with the same number of sequences and a batch of 1.");
  const int64_t key_heads = key.size(1), group = query.size(1) / key_heads, keys = key.size(2);
  const int64_t spans = edges_q ? static_cast<int64_t>(query_edges.size()) - 1 : query.size(0);
  WorkItems items;
  const int64_t count = spans * key_heads, threads = at::get_num_threads();
  if (count > 0 && count < threads) {
    const int64_t blocks = std::max<int64_t>(1, (query.size(2) + reluformer::kQueries - 1) / reluformer::kQueries);
    items.chunks = std::min((threads + count - 1) / count, blocks);
  }
  for (int64_t span = 0; span < spans; ++span) {
    const int64_t batch = edges_q ? 0 : span;
    const int64_t query_begin = edges_q ? query_edges[span] : 0,
                  query_end = edges_q ? query_edges[span + 1] : query.size(2);
    const int64_t key_begin = edges_q ? key_edges[span] : 0, key_end = edges_q ? key_edges[span + 1] : keys;
    const int64_t step =
        reluformer::round_up((query_end - query_begin + items.chunks - 1) / items.chunks, reluformer::kQueries);
    for (int64_t head = 0; head < key_heads; ++head) {
      for (int64_t chunk = 0; chunk < items.chunks; ++chunk) {
        const int64_t begin = std::min(query_end, query_begin + chunk * step),
                      end = items.chunks == 1 ? query_end : std::min(query_end, begin + step);
        items.all.push_back({.index = span * key_heads + head,
                             .batch = batch,
                             .key_head = head,
                             .first_head = head * group,
                             .heads = group,
                             .query_start = query_begin,
                             .query_begin = begin,
                             .query_end = end,
                             .key_begin = key_begin,
                             .key_end = key_end,
                             .real = mask ? mask + batch * keys + key_begin : nullptr});
      }
    }
  }
  return items;
}

template <typename Function>
void for_each_item(const WorkItems& items, double work, Function function) {
  const auto count = static_cast<int64_t>(items.all.size());
  const bool alone = work < kWorkOfAThread || at::get_num_threads() == 1;
  at::parallel_for(0, count, alone ? std::max<int64_t>(count, 1) : 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      function(items.all[index], index);
    }
    reluformer::release_products();
  });
}

double work_of(const Tensor& query, const Tensor& key, int64_t products) {
  return 2.0 * products * query.size(0) * query.size(1) * query.size(2) * key.size(2) * query.size(3);
}

Call call_of(RELUFORMER_PARAMETERS(int64_t)) {
  constexpr int64_t kFar = int64_t{1} << 40;  // beyond the end of every sequence, and far from overflow
  const int64_t drawn = seed ? seed->item<int64_t>() : 0, first = offset ? offset->item<int64_t>() : query_offset;
  const int64_t offset_of_call = std::clamp(first, -kFar, kFar);
  // from any offset, a window of 2 kFar reaches back to the first key
  const int64_t window_of_call = std::min(window.value_or(2 * kFar), 2 * kFar);
  return {.activation = activation_of(activation),
          .dims = query.size(3),
          .dims_v = value.size(3),
          .statistics = statistics_count(statistics),
          .scale = static_cast<float>(scale),
          .causal = causal,
          .offset = offset_of_call,
          .window = window_of_call,
          .dropout = dropout_p,
          .seed = drawn};
}

// Calls `function` with the kernels of a dtype.
template <typename Function>
void dispatch(at::ScalarType dtype, Function function) {
  const reluformer::KernelSet& set = *reluformer::chosen_set()->attention;
  if (dtype == at::kFloat) {
    function(set.of_float);
    return;
  }
#ifndef __aarch64__  // whose products are of floats alone
  if (set.of_bfloat16) {
    function(*set.of_bfloat16);
    return;
  }
#endif
  function(*set.of_widened_bfloat16);
}

std::tuple<Tensor, Tensor, Tensor> forward(RELUFORMER_PARAMETERS(int64_t)) {
  TORCH_CHECK_VALUE(fits(query, key, value, row_scale, key_padding_mask),
                    "reluformer_cpu::attention: the tensors do not fit each other.");
  const Call call = call_of(RELUFORMER_ARGUMENTS);
  const Tensor output = empty_like_heads(query, value.size(3));
  const auto wide = query.options().dtype(at::kFloat);
  auto statistic = [&](int64_t level) {
    return at::empty(call.statistics >= level ? query.sizes().slice(0, 3) : at::IntArrayRef{0}, wide);
  };
  const Tensor row_sum = statistic(1), row_sum_log = statistic(2);
  const Tensor q = side_by_side(query), k = side_by_side(key), v = side_by_side(value);
  const MaybeTensor scales = row_scale ? MaybeTensor(row_scale->contiguous()) : std::nullopt;
  const MaybeTensor real = key_padding_mask ? MaybeTensor(key_padding_mask->contiguous()) : std::nullopt;
  const WorkItems items = items_of(q, k, real ? real->const_data_ptr<bool>() : nullptr, cu_seqlens_q, cu_seqlens_k);
  dispatch(query.scalar_type(), [&](const auto& kernels) {
    using Scalar = typename std::decay_t<decltype(kernels)>::Scalar;
    const reluformer::Inputs<Scalar> in{heads_of<const Scalar>(q), heads_of<const Scalar>(k), heads_of<const Scalar>(v),
                                        numbers_of(scales)};
    const reluformer::Outputs<Scalar> out{heads_of<Scalar>(output), numbers_of(row_sum), numbers_of(row_sum_log)};
    for_each_item(items, work_of(q, k, 2),
                  [&](const WorkItem& item, int64_t) { reluformer::forward_item(kernels, item, call, in, out); });
  });
  return {output, row_sum, row_sum_log};
}

template <typename Scalar, typename Number>
void write_key_gradients(const reluformer::Kernels<Scalar, Number>& kernels, const WorkItems& items, const Tensor& sums,
                         int64_t dims, const Tensor& gradient) {
  const Heads<Scalar> target = heads_of<Scalar>(gradient);
  const int64_t size = sums.size(1);
  for_each_item(items, static_cast<double>(sums.numel()), [&](const WorkItem& item, int64_t index) {
    if (index % items.chunks == 0) {
      float* first = sums.mutable_data_ptr<float>() + index * size;
      for (int64_t chunk = 1; chunk < items.chunks; ++chunk) {
        for (int64_t i = 0; i < size; ++i) {
          first[i] += first[chunk * size + i];
        }
      }
      reluformer::write_key_gradient(kernels, item, dims, first, target);
    }
  });
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_output, const MaybeTensor& grad_sum,
                                            const MaybeTensor& grad_sum_log, RELUFORMER_PARAMETERS(int64_t)) {
  TORCH_CHECK_VALUE(
      fits(query, key, value, row_scale, key_padding_mask) && grad_output.scalar_type() == query.scalar_type(),
      "reluformer_cpu::attention_backward: the tensors do not fit each other.");
  const Call call = call_of(RELUFORMER_ARGUMENTS);
  const Tensor grad_query = empty_like_heads(query, query.size(3)), grad_key = empty_like_heads(key, key.size(3)),
               grad_value = empty_like_heads(value, value.size(3));
  const Tensor q = side_by_side(query), k = side_by_side(key), v = side_by_side(value),
               incoming = side_by_side(grad_output);
  auto whole = [](const MaybeTensor& tensor) { return tensor ? MaybeTensor(tensor->contiguous()) : std::nullopt; };
  const MaybeTensor scales = whole(row_scale), real = whole(key_padding_mask), gains = whole(grad_sum),
                    gains_log = whole(grad_sum_log);
  const WorkItems items = items_of(q, k, real ? real->const_data_ptr<bool>() : nullptr, cu_seqlens_q, cu_seqlens_k);
  dispatch(query.scalar_type(), [&](const auto& kernels) {
    using Scalar = typename std::decay_t<decltype(kernels)>::Scalar;
    const reluformer::Inputs<Scalar> in{heads_of<const Scalar>(q), heads_of<const Scalar>(k), heads_of<const Scalar>(v),
                                        numbers_of(scales)};
    const reluformer::Gradients<Scalar> gradients{
        heads_of<const Scalar>(incoming), numbers_of(gains),          numbers_of(gains_log),
        heads_of<Scalar>(grad_query),     heads_of<Scalar>(grad_key), heads_of<Scalar>(grad_value)};
    int64_t longest = 0;
    for (const WorkItem& item : items.all) {
      longest = std::max(longest, item.key_end - item.key_begin);
    }
    const reluformer::KeyTiles<Scalar> keys(longest, call.dims, false), values(longest, call.dims_v, false);
    const auto wide = query.options().dtype(at::kFloat);
    const auto shared = items.chunks > 1 ? static_cast<int64_t>(items.all.size()) : 0;
    const Tensor key_sums = at::empty({shared, keys.size()}, wide),
                 value_sums = at::empty({shared, values.size()}, wide);
    for_each_item(items, work_of(q, k, 5), [&](const WorkItem& item, int64_t index) {
      reluformer::KeySums total{nullptr, nullptr};
      if (shared) {
        total = {key_sums.mutable_data_ptr<float>() + index * keys.size(),
                 value_sums.mutable_data_ptr<float>() + index * values.size()};
      }
      reluformer::backward_item(kernels, item, call, in, gradients, total);
    });
    if (items.chunks > 1) {
      write_key_gradients(kernels, items, key_sums, call.dims, grad_key);
      write_key_gradients(kernels, items, value_sums, call.dims_v, grad_value);
    }
  });
  return {grad_query, grad_key, grad_value};
}

}  // namespace

TORCH_LIBRARY(reluformer_cpu, library) {
  library.def("attention(" RELUFORMER_SCHEMA);
  library.def("attention_backward(Tensor grad_output, Tensor? grad_sum, Tensor? grad_sum_log, " RELUFORMER_SCHEMA);
  library.def("supports(ScalarType dtype) -> bool", supports);
  library.def("activations() -> str[]", activations);
  library.def("closed_at_zero(str activation) -> bool", closed_at_zero);
  library.def("instruction_sets() -> str[]", instruction_sets);
  library.def("choose_instruction_set(str name) -> str", choose_instruction_set);
}

TORCH_LIBRARY_IMPL(reluformer_cpu, CPU, library) {
  library.impl("attention", forward);
  library.impl("attention_backward", backward);
}

TORCH_LIBRARY_IMPL(reluformer_cpu, Autograd, library) {
  library.impl("attention", attention_autograd);
  library.impl("attention_backward", backward_autograd);
}
