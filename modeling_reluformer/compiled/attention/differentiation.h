// The derivative of `reluformer_cpu::attention` for torch's autograd. In C++, since one in Python costs more than a
// short call itself.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <string_view>
#include <tuple>

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments of the operator; `Integer` is int64_t in a kernel, and c10::SymInt where torch traces.
#define RELUFORMER_TENSORS                                                                                            \
  const Tensor &query, const Tensor &key, const Tensor &value, const MaybeTensor &row_scale, const MaybeTensor &mask, \
      const MaybeTensor &edges_q, const MaybeTensor &edges_k, const MaybeTensor &offset, const MaybeTensor &seed
#define RELUFORMER_OPTIONS(Integer)                                                             \
  std::string_view activation, double scale, bool causal, Integer query_offset, double dropout, \
      std::string_view statistics
#define RELUFORMER_ARGUMENTS                                                                                   \
  query, key, value, row_scale, mask, edges_q, edges_k, offset, seed, activation, scale, causal, query_offset, \
      dropout, statistics

// With row scales, d r_i = [dO_i·O_i + gS_i S_i + gT_i (T_i + S_i)] / r_i
Tensor gradient_of_scale(const Tensor& row_scale, const Tensor& grad_output, const MaybeTensor& grad_sum,
                         const MaybeTensor& grad_sum_log, const Tensor& output, const Tensor& row_sum,
                         const Tensor& row_sum_log) {
  Tensor total = (grad_output.to(at::kFloat) * output).sum(-1);
  if (grad_sum) {
    total = total + *grad_sum * row_sum;
  }
  if (grad_sum_log) {
    total = total + *grad_sum_log * (row_sum_log + row_sum);
  }
  total = total / row_scale;
  return row_scale.size(1) == 1 ? total.sum(1, true) : total;
}

using Forward = std::tuple<Tensor, Tensor, Tensor>(RELUFORMER_TENSORS, RELUFORMER_OPTIONS(c10::SymInt));
using Backward = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const MaybeTensor&, const MaybeTensor&,
                                                    RELUFORMER_TENSORS, RELUFORMER_OPTIONS(c10::SymInt));

template <typename Signature>
const c10::TypedOperatorHandle<Signature>& operator_of(const char* name) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  return handle;
}

// What the backward pass needs beside tensors, in one piece: entries of `saved_data` by name cost microseconds.
struct Options : torch::CustomClassHolder {
  Options(std::string_view activation, double scale, bool causal, c10::SymInt query_offset, double dropout,
          std::string_view statistics)
      : activation(activation),
        statistics(statistics),
        scale(scale),
        dropout(dropout),
        causal(causal),
        query_offset(std::move(query_offset)) {}
  std::string activation, statistics;
  double scale, dropout;
  bool causal;
  c10::SymInt query_offset;
};

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* context, RELUFORMER_TENSORS, RELUFORMER_OPTIONS(c10::SymInt)) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [output, row_sum, row_sum_log] = operator_of<Forward>("reluformer_cpu::attention").call(RELUFORMER_ARGUMENTS);
    const bool wanted = row_scale && row_scale->requires_grad();
    auto or_none = [](const MaybeTensor& tensor) { return tensor ? *tensor : Tensor(); };
    variable_list saved{
        query,           key,          value, or_none(row_scale), or_none(mask), or_none(edges_q), or_none(edges_k),
        or_none(offset), or_none(seed)};
    if (wanted) {
      saved.insert(saved.end(), {output, row_sum, row_sum_log});
    }
    context->save_for_backward(std::move(saved));
    context->set_materialize_grads(false);
    context->saved_data["options"] = c10::IValue::make_capsule(
        c10::make_intrusive<Options>(activation, scale, causal, std::move(query_offset), dropout, statistics));
    return {output, row_sum, row_sum_log};
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const variable_list saved = context->get_saved_variables();
    auto maybe = [&](size_t index) { return saved[index].defined() ? MaybeTensor(saved[index]) : std::nullopt; };
    const auto holder = context->saved_data["options"].toCapsule();
    const auto& options = static_cast<const Options&>(*holder);
    // Where no graph is traced, undefined; and whatever it is of a statistic that was not wanted.
    const size_t wanted = options.statistics == "none" ? 0 : options.statistics == "sum" ? 1 : 2;
    auto given = [&](size_t index) {
      return index <= wanted && incoming[index].defined() ? MaybeTensor(incoming[index]) : std::nullopt;
    };
    const MaybeTensor grad_sum = given(1), grad_sum_log = given(2);
    const Tensor grad_output =
        incoming[0].defined()
            ? incoming[0]
            : at::zeros_symint({saved[0].sym_size(0), saved[0].sym_size(1), saved[0].sym_size(2), saved[2].sym_size(3)},
                               saved[0].options());
    auto [query, key, value] =
        operator_of<Backward>("reluformer_cpu::attention_backward")
            .call(grad_output, grad_sum, grad_sum_log, saved[0], saved[1], saved[2], maybe(3), maybe(4), maybe(5),
                  maybe(6), maybe(7), maybe(8), options.activation, options.scale, options.causal, options.query_offset,
                  options.dropout, options.statistics);
    Tensor scale;
    if (saved.size() > 9) {
      scale = gradient_of_scale(saved[3], grad_output, grad_sum, grad_sum_log, saved[9], saved[10], saved[11]);
    }
    variable_list gradients(15);
    gradients[0] = query;
    gradients[1] = key;
    gradients[2] = value;
    gradients[3] = scale;
    return gradients;
  }
};

bool is_dual(const MaybeTensor& tensor) { return tensor && tensor->_fw_grad(0).defined(); }

std::tuple<Tensor, Tensor, Tensor> attention_autograd(RELUFORMER_TENSORS, RELUFORMER_OPTIONS(c10::SymInt)) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_dual(query) && !is_dual(key) && !is_dual(value) && !is_dual(row_scale),
                              "relu_attention was given a dual tensor; its operator has no forward-mode derivative. "
                              "Use reverse mode (backward(), "
                              "torch.autograd.grad), or attn_implementation='eager'.");
  auto wants = [](const MaybeTensor& tensor) { return tensor && tensor->requires_grad(); };
  if (!at::GradMode::is_enabled() || !(wants(query) || wants(key) || wants(value) || wants(row_scale))) {
    at::AutoDispatchBelowADInplaceOrView below;
    return operator_of<Forward>("reluformer_cpu::attention").call(RELUFORMER_ARGUMENTS);
  }
  auto found = Attention::apply(RELUFORMER_ARGUMENTS);
  return {found[0], found[1], found[2]};
}

struct AttentionBackward : torch::autograd::Function<AttentionBackward> {
  static variable_list forward(AutogradContext*, const Tensor& grad_output, const MaybeTensor& grad_sum,
                               const MaybeTensor& grad_sum_log, RELUFORMER_TENSORS, RELUFORMER_OPTIONS(c10::SymInt)) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [first, second, third] = operator_of<Backward>("reluformer_cpu::attention_backward")
                                      .call(grad_output, grad_sum, grad_sum_log, RELUFORMER_ARGUMENTS);
    return {first, second, third};
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "relu_attention can be differentiated once; its gradient has no derivative. Use attn_implementation='eager'.");
  }
};

std::tuple<Tensor, Tensor, Tensor> backward_autograd(const Tensor& grad_output, const MaybeTensor& grad_sum,
                                                     const MaybeTensor& grad_sum_log, RELUFORMER_TENSORS,
                                                     RELUFORMER_OPTIONS(c10::SymInt)) {
  if (!at::GradMode::is_enabled()) {
    at::AutoDispatchBelowADInplaceOrView below;
    return operator_of<Backward>("reluformer_cpu::attention_backward")
        .call(grad_output, grad_sum, grad_sum_log, RELUFORMER_ARGUMENTS);
  }
  auto found = AttentionBackward::apply(grad_output, grad_sum, grad_sum_log, RELUFORMER_ARGUMENTS);
  return {found[0], found[1], found[2]};
}

}  // namespace
