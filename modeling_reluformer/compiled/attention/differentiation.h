// The derivative of `reluformer_cpu::attention` for torch's autograd. In C++, since one in Python costs more than a
// short call itself.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "instruction_sets.h"

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The fields of `Specification` in fused/specification.py, in its order: the arguments of the operators after query,
// key and value. All that lists them follows from here: schema, parameters, and what is kept for the backward pass.
// Integer: int64_t in a kernel, and c10::SymInt where torch traces.
#define RELUFORMER_TENSOR_FIELDS(FIELD) \
  FIELD(row_scale) FIELD(key_padding_mask) FIELD(cu_seqlens_q) FIELD(cu_seqlens_k) FIELD(offset) FIELD(seed)
#define RELUFORMER_OPTION_FIELDS(FIELD, Integer)   \
  FIELD("str", std::string_view, activation)       \
  FIELD("float", double, scale)                    \
  FIELD("bool", bool, causal)                      \
  FIELD("SymInt", Integer, query_offset)           \
  FIELD("SymInt?", std::optional<Integer>, window) \
  FIELD("float", double, dropout_p)                \
  FIELD("str", std::string_view, statistics)

#define RELUFORMER_TENSOR_PARAMETER(name) , const MaybeTensor& name
#define RELUFORMER_OPTION_PARAMETER(schema, Type, name) , Type name
#define RELUFORMER_PARAMETERS(Integer)                                          \
  const Tensor &query, const Tensor &key,                                       \
      const Tensor &value RELUFORMER_TENSOR_FIELDS(RELUFORMER_TENSOR_PARAMETER) \
          RELUFORMER_OPTION_FIELDS(RELUFORMER_OPTION_PARAMETER, Integer)

#define RELUFORMER_TENSOR_ARGUMENT(name) , name
#define RELUFORMER_OPTION_ARGUMENT(schema, Type, name) , name
#define RELUFORMER_ARGUMENTS                                     \
  query, key,                                                    \
      value RELUFORMER_TENSOR_FIELDS(RELUFORMER_TENSOR_ARGUMENT) \
          RELUFORMER_OPTION_FIELDS(RELUFORMER_OPTION_ARGUMENT, )

#define RELUFORMER_TENSOR_SCHEMA(name) ", Tensor? " #name
#define RELUFORMER_OPTION_SCHEMA(schema, Type, name) ", " schema " " #name
#define RELUFORMER_SCHEMA                                                                     \
  "Tensor query, Tensor key, Tensor value" RELUFORMER_TENSOR_FIELDS(RELUFORMER_TENSOR_SCHEMA) \
      RELUFORMER_OPTION_FIELDS(RELUFORMER_OPTION_SCHEMA, ) ") -> (Tensor, Tensor, Tensor)"

// How many statistics are wanted: S, then T.
int64_t statistics_count(std::string_view name) { return reluformer::number_of({"none", "sum", "sum+entropy"}, name); }

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

using Forward = std::tuple<Tensor, Tensor, Tensor>(RELUFORMER_PARAMETERS(c10::SymInt));
using Backward = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const MaybeTensor&, const MaybeTensor&,
                                                    RELUFORMER_PARAMETERS(c10::SymInt));

template <typename Signature>
const c10::TypedOperatorHandle<Signature>& operator_of(const char* name) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  return handle;
}

// Where each tensor stands among those that are saved for the backward pass.
#define RELUFORMER_SAVED_INDEX(name) , kSaved_##name
enum Saved : size_t {
  kSaved_query,
  kSaved_key,
  kSaved_value RELUFORMER_TENSOR_FIELDS(RELUFORMER_SAVED_INDEX),
  kSavedInputs
};

// What the backward pass needs beside tensors, as one object: entries of `saved_data` by name cost microseconds.
template <typename Type>
using Kept = std::conditional_t<std::is_same_v<Type, std::string_view>, std::string, Type>;
#define RELUFORMER_OPTION_MEMBER(schema, Type, name) Kept<Type> name;
struct Options : torch::CustomClassHolder {
  RELUFORMER_OPTION_FIELDS(RELUFORMER_OPTION_MEMBER, c10::SymInt)
};
#define RELUFORMER_OPTION_COUNT(schema, Type, name) +1
constexpr size_t kOptions = 0 RELUFORMER_OPTION_FIELDS(RELUFORMER_OPTION_COUNT, );

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* context, RELUFORMER_PARAMETERS(c10::SymInt)) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [output, row_sum, row_sum_log] = operator_of<Forward>("reluformer_cpu::attention").call(RELUFORMER_ARGUMENTS);
    const bool wanted = row_scale && row_scale->requires_grad();
    auto or_none = [](const MaybeTensor& tensor) { return tensor ? *tensor : Tensor(); };
#define RELUFORMER_SAVED_TENSOR(name) , or_none(name)
    variable_list saved{query, key, value RELUFORMER_TENSOR_FIELDS(RELUFORMER_SAVED_TENSOR)};
    if (wanted) {
      saved.insert(saved.end(), {output, row_sum, row_sum_log});
    }
    context->save_for_backward(std::move(saved));
    context->set_materialize_grads(false);
    auto options = c10::make_intrusive<Options>();
#define RELUFORMER_KEEP_OPTION(schema, Type, name) options->name = name;
    RELUFORMER_OPTION_FIELDS(RELUFORMER_KEEP_OPTION, )
    context->saved_data["options"] = c10::IValue::make_capsule(std::move(options));
    return {output, row_sum, row_sum_log};
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const variable_list saved = context->get_saved_variables();
    auto maybe = [&](size_t index) { return saved[index].defined() ? MaybeTensor(saved[index]) : std::nullopt; };
    const auto holder = context->saved_data["options"].toCapsule();
    const auto& options = static_cast<const Options&>(*holder);
    // The gradient of an output that nothing used is undefined (zeros while a graph is traced). That of a statistic
    // that was not asked for is ignored.
    const int64_t wanted = statistics_count(options.statistics);
    auto gradient_of = [&](int64_t index) {
      return index <= wanted && incoming[index].defined() ? MaybeTensor(incoming[index]) : std::nullopt;
    };
    const MaybeTensor grad_sum = gradient_of(1), grad_sum_log = gradient_of(2);
    const Tensor &query = saved[kSaved_query], &key = saved[kSaved_key], &value = saved[kSaved_value];
    const Tensor grad_output =
        incoming[0].defined()
            ? incoming[0]
            : at::zeros_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2), value.sym_size(3)},
                               query.options());
    variable_list gradients(kSavedInputs + kOptions);
#define RELUFORMER_LOADED_TENSOR(name) , maybe(kSaved_##name)
#define RELUFORMER_LOADED_OPTION(schema, Type, name) , options.name
    std::tie(gradients[kSaved_query], gradients[kSaved_key], gradients[kSaved_value]) =
        operator_of<Backward>("reluformer_cpu::attention_backward")
            .call(grad_output, grad_sum, grad_sum_log, query, key,
                  value RELUFORMER_TENSOR_FIELDS(RELUFORMER_LOADED_TENSOR)
                      RELUFORMER_OPTION_FIELDS(RELUFORMER_LOADED_OPTION, ));
    if (saved.size() > kSavedInputs) {
      const Tensor &output = saved[kSavedInputs], &row_sum = saved[kSavedInputs + 1],
                   &row_sum_log = saved[kSavedInputs + 2];
      gradients[kSaved_row_scale] =
          gradient_of_scale(saved[kSaved_row_scale], grad_output, grad_sum, grad_sum_log, output, row_sum, row_sum_log);
    }
    return gradients;
  }
};

bool is_dual(const MaybeTensor& tensor) { return tensor && tensor->_fw_grad(0).defined(); }

std::tuple<Tensor, Tensor, Tensor> attention_autograd(RELUFORMER_PARAMETERS(c10::SymInt)) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_dual(query) && !is_dual(key) && !is_dual(value) && !is_dual(row_scale),
                              "relu_attention was given a dual tensor; its operator has no forward-mode derivative. "
                              "Use reverse mode (backward(), torch.autograd.grad), or "
                              "attn_implementation='eager'.");
  auto wants = [](const MaybeTensor& tensor) { return tensor && tensor->requires_grad(); };
  if (!at::GradMode::is_enabled() || !(wants(query) || wants(key) || wants(value) || wants(row_scale))) {
    at::AutoDispatchBelowADInplaceOrView below;
    return operator_of<Forward>("reluformer_cpu::attention").call(RELUFORMER_ARGUMENTS);
  }
  auto results = Attention::apply(RELUFORMER_ARGUMENTS);
  return {results[0], results[1], results[2]};
}

struct AttentionBackward : torch::autograd::Function<AttentionBackward> {
  static variable_list forward(AutogradContext*, const Tensor& grad_output, const MaybeTensor& grad_sum,
                               const MaybeTensor& grad_sum_log, RELUFORMER_PARAMETERS(c10::SymInt)) {
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
                                                     const MaybeTensor& grad_sum_log,
                                                     RELUFORMER_PARAMETERS(c10::SymInt)) {
  if (!at::GradMode::is_enabled()) {
    at::AutoDispatchBelowADInplaceOrView below;
    return operator_of<Backward>("reluformer_cpu::attention_backward")
        .call(grad_output, grad_sum, grad_sum_log, RELUFORMER_ARGUMENTS);
  }
  auto results = AttentionBackward::apply(grad_output, grad_sum, grad_sum_log, RELUFORMER_ARGUMENTS);
  return {results[0], results[1], results[2]};
}

}  // namespace
