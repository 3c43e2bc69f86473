// `reluformer_cpu::sparse_ffn` and its two halves: a feed-forward network of few rows that reads no weights that meet a
// zero. sparse_ffn/forward.py is the same in Python; sparse_kernels.cpp has the loops.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "instruction_sets.h"
#include "vectors.h"

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using reluformer::BFloat16;
using reluformer::FeedForward;
using reluformer::InputRows;
using reluformer::Neurons;
using reluformer::SparseKernels;

// Below this many bytes of weights a second thread costs more than it gains.
constexpr int64_t kBytesOfAThread = 1 << 17;
constexpr int64_t kStep = 64;  // rows of x and y are padded to it

template <typename Weight>
const SparseKernels<Weight>& kernels() {
  if constexpr (std::is_same_v<Weight, float>) {
    return reluformer::chosen_set()->sparse->of_float;
  } else if constexpr (std::is_same_v<Weight, BFloat16>) {
    return reluformer::chosen_set()->sparse->of_bfloat16;
  } else {
    return reluformer::chosen_set()->sparse->of_int8;
  }
}

// A value of FFNActivation
int64_t activation_of(std::string_view name) { return reluformer::number_of(reluformer::kFFNActivations, name); }

struct Projection {
  const Tensor& weight;
  const MaybeTensor &scale, &bias;
};

void check(const Tensor& x, int64_t inputs, int64_t neurons, const Projection& projection) {
  const Tensor& weight = projection.weight;
  const bool is_int8 = weight.scalar_type() == at::kChar;
  bool fits = weight.dim() == 2 && weight.is_contiguous() && weight.device().is_cpu() && weight.size(0) == neurons &&
              weight.size(1) == inputs && (is_int8 || weight.scalar_type() == x.scalar_type()) &&
              is_int8 == projection.scale.has_value();
  for (const MaybeTensor* numbers : {&projection.scale, &projection.bias}) {
    fits = fits && (!*numbers ||
                    ((*numbers)->scalar_type() == at::kFloat && (*numbers)->is_contiguous() && (*numbers)->dim() == 1));
  }
  TORCH_CHECK_VALUE(fits && (!projection.scale || projection.scale->size(0) == neurons),
                    "reluformer_cpu::sparse_ffn: the tensors do not fit each other.");
}

void check_rows(const Tensor& x) {
  TORCH_CHECK_VALUE(
      x.dim() == 2 && x.device().is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16),
      "reluformer_cpu::sparse_ffn takes (rows, features) of float32 or bfloat16 on a CPU; got ", x.sizes(), " of ",
      x.scalar_type());
}

const float* numbers_of(const MaybeTensor& tensor) { return tensor ? tensor->const_data_ptr<float>() : nullptr; }

template <typename Weight>
Neurons<Weight> neurons_of(const Projection& projection) {
  return {static_cast<const Weight*>(projection.weight.const_data_ptr()), numbers_of(projection.scale),
          numbers_of(projection.bias)};
}

// The rows of a tensor in the forms that kernels read.
struct PreparedRows {
  std::unique_ptr<float[]> wide, scales;
  std::unique_ptr<uint16_t[]> narrow;
  std::unique_ptr<uint8_t[]> bytes;
  InputRows rows;
  bool finite = true;
};

PreparedRows prepared(const Tensor& inputs, bool is_int8) {
  const Tensor x = inputs.contiguous();
  PreparedRows result;
  const int64_t count = x.size(0), dims = x.size(1), stride = reluformer::round_up(dims, kStep);
  result.wide = std::make_unique<float[]>(count * stride);
  if (x.scalar_type() == at::kFloat) {
    const float* from = x.const_data_ptr<float>();
    for (int64_t row = 0; row < count; ++row) {
      std::copy_n(from + row * dims, dims, result.wide.get() + row * stride);
    }
  } else {
    result.narrow = std::make_unique<uint16_t[]>(count * stride);
    const auto* from = static_cast<const uint16_t*>(x.const_data_ptr());
    for (int64_t row = 0; row < count; ++row) {
      std::copy_n(from + row * dims, dims, result.narrow.get() + row * stride);
      for (int64_t i = 0; i < dims; ++i) {
        result.wide[row * stride + i] = reluformer::widen(BFloat16{from[row * dims + i]});
      }
    }
  }
  float strange = 0.0f;  // NaN where a number is not finite
  for (int64_t i = 0; i < count * stride; ++i) {
    strange += result.wide[i] - result.wide[i];
  }
  result.finite = strange == 0.0f;
  result.rows = {count,   dims,   stride, result.wide.get(), reinterpret_cast<BFloat16*>(result.narrow.get()),
                 nullptr, nullptr};
  if (is_int8) {
    result.bytes = std::make_unique<uint8_t[]>(count * stride);
    result.scales = std::make_unique<float[]>(count);
    result.rows.bytes = result.bytes.get();
    result.rows.scales = result.scales.get();
    reluformer::chosen_set()->sparse->quantize(result.rows);
  }
  return result;
}

// (rows, dims) of float32 → a tensor like x, with a bias if there is one. `parts` of them follow each other and are
// added up.
Tensor narrowed(float* sums, int64_t parts, int64_t rows, int64_t dims, int64_t stride, const float* bias,
                const Tensor& x) {
  const Tensor output = at::empty({rows, dims}, x.options());
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t i = 0; i < rows * stride; ++i) {
      sums[i] += sums[part * rows * stride + i];
    }
  }
  auto write = [&](auto* to) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < dims; ++i) {
        reluformer::narrow(to + row * dims + i, sums[row * stride + i] + (bias ? bias[i] : 0.0f));
      }
    }
  };
  x.scalar_type() == at::kFloat ? write(output.mutable_data_ptr<float>())
                                : write(static_cast<BFloat16*>(output.mutable_data_ptr()));
  return output;
}

// Cuts neurons into a part for each thread that has enough to do.
template <typename Function>
int64_t for_each_part(int64_t neurons, int64_t bytes, Function function) {
  const int64_t parts = std::clamp<int64_t>(bytes / kBytesOfAThread, 1, at::get_num_threads());
  const int64_t step = reluformer::round_up((neurons + parts - 1) / parts, 16);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      function(part, std::min(neurons, part * step), std::min(neurons, (part + 1) * step));
    }
  });
  return parts;
}

template <typename Function>
Tensor dispatch(const Tensor& weight, Function function) {
  switch (weight.scalar_type()) {
    case at::kFloat:
      return function(float{});
    case at::kBFloat16:
      return function(BFloat16{});
    case at::kChar:
      return function(int8_t{});
    default:
      TORCH_CHECK_VALUE(false, "reluformer_cpu::sparse_ffn takes weights of float32, bfloat16 or int8; got ",
                        weight.scalar_type());
  }
}

template <typename Weight>
Tensor spent(FeedForward<Weight>& ffn, const PreparedRows& x, int64_t neurons, const Projection& second,
             const Tensor& like) {
  ffn.second = neurons_of<Weight>({second.weight, second.scale, std::nullopt});
  ffn.outputs = second.weight.size(1);
  const int64_t rows = x.rows.count, stride = reluformer::round_up(ffn.outputs, kStep);
  const int64_t most = at::get_num_threads();
  auto sums = std::make_unique_for_overwrite<float[]>(most * rows * stride);
  auto room = std::make_unique_for_overwrite<float[]>((neurons + 16 * most) * (rows + 1));
  const int64_t bytes =
      neurons * static_cast<int64_t>(sizeof(Weight)) * (ffn.outputs + (ffn.first.weights ? x.rows.dims : 0));
  const int64_t parts = for_each_part(neurons, bytes, [&](int64_t part, int64_t begin, int64_t end) {
    kernels<Weight>().feed_forward(ffn, x.rows, begin, end, room.get() + begin * (rows + 1),
                                   sums.get() + part * rows * stride, stride);
  });
  return narrowed(sums.get(), parts, rows, ffn.outputs, stride, numbers_of(second.bias), like);
}

Tensor sparse_ffn(const Tensor& x, const Tensor& first, const MaybeTensor& first_scale, const MaybeTensor& first_bias,
                  const MaybeTensor& up, const MaybeTensor& up_scale, const MaybeTensor& up_bias, const Tensor& second,
                  const MaybeTensor& second_scale, const MaybeTensor& second_bias, std::string_view activation,
                  std::string_view up_activation, const MaybeTensor& hidden, bool all_active) {
  check_rows(x);
  const Projection one{first, first_scale, first_bias}, two{second, second_scale, second_bias};
  const int64_t neurons = first.size(0), inputs = x.size(1);
  check(x, inputs, neurons, one);
  check(x, second.size(-1), neurons, two);
  TORCH_CHECK_VALUE(!hidden || (hidden->dim() == 2 && hidden->size(0) == x.size(0) && hidden->size(1) == neurons),
                    "reluformer_cpu::sparse_ffn: hidden is not (rows, neurons).");
  if (up) {
    check(x, inputs, neurons, {*up, up_scale, up_bias});
  }
  TORCH_CHECK_VALUE(first.scalar_type() == second.scalar_type() && (!up || up->scalar_type() == first.scalar_type()),
                    "reluformer_cpu::sparse_ffn: weights of different types.");
  return dispatch(first, [&](auto kind) {
    using Weight = decltype(kind);
    const PreparedRows rows = prepared(x, std::is_same_v<Weight, int8_t>);
    FeedForward<Weight> ffn{};
    Tensor wide;
    if (hidden) {
      wide = hidden->to(at::kFloat).contiguous();
      ffn.hidden = wide.const_data_ptr<float>();
      ffn.hidden_stride = neurons;
    } else {
      ffn.first = neurons_of<Weight>(one);
    }
    ffn.up = up ? neurons_of<Weight>({*up, up_scale, up_bias}) : Neurons<Weight>{};
    ffn.activation = activation_of(activation);
    ffn.up_activation = activation_of(up_activation);
    ffn.all_active = all_active || !rows.finite;  // zero times infinity is NaN
    return spent<Weight>(ffn, rows, neurons, two, x);
  });
}

// second·h + bias, where most of h is zero: (rows, neurons) → (rows, outputs)
Tensor sparse_projection(const Tensor& hidden, const Tensor& weight, const MaybeTensor& scale, const MaybeTensor& bias,
                         bool all_active) {
  check_rows(hidden);
  const int64_t neurons = hidden.size(1);
  const Projection second{weight, scale, bias};
  check(hidden, weight.size(-1), neurons, second);
  return dispatch(weight, [&](auto kind) {
    using Weight = decltype(kind);
    const PreparedRows rows = prepared(hidden, false);
    FeedForward<Weight> ffn{};
    ffn.hidden = rows.rows.wide;
    ffn.hidden_stride = rows.rows.stride;
    ffn.all_active = all_active;
    return spent<Weight>(ffn, rows, neurons, second, hidden);
  });
}

// weight·x + bias of few rows: (rows, features) → (rows, neurons)
Tensor dense_projection(const Tensor& x, const Tensor& weight, const MaybeTensor& scale, const MaybeTensor& bias) {
  check_rows(x);
  const Projection projection{weight, scale, bias};
  const int64_t neurons = weight.size(0), count = x.size(0);
  check(x, x.size(1), neurons, projection);
  return dispatch(weight, [&](auto kind) {
    using Weight = decltype(kind);
    const PreparedRows rows = prepared(x, std::is_same_v<Weight, int8_t>);
    auto sums = std::make_unique_for_overwrite<float[]>(count * neurons);
    for_each_part(neurons, weight.numel() * static_cast<int64_t>(sizeof(Weight)),
                  [&](int64_t, int64_t begin, int64_t end) {
                    kernels<Weight>().project(neurons_of<Weight>(projection), rows.rows, begin, end,
                                              reluformer::kFFNIdentity, sums.get() + begin, neurons);
                  });
    return narrowed(sums.get(), 1, count, neurons, neurons, nullptr, x);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reluformer_cpu, library) {
  library.def(
      "sparse_ffn(Tensor x, Tensor first, Tensor? first_scale, Tensor? first_bias, Tensor? up, Tensor? up_scale, "
      "Tensor? up_bias, Tensor second, Tensor? second_scale, Tensor? second_bias, str activation, str up_activation, "
      "Tensor? hidden, bool all_active) -> Tensor");
  library.def(
      "sparse_projection(Tensor hidden, Tensor weight, Tensor? scale, Tensor? bias, bool all_active) -> Tensor");
  library.def("dense_projection(Tensor x, Tensor weight, Tensor? scale, Tensor? bias) -> Tensor");
}

TORCH_LIBRARY_IMPL(reluformer_cpu, CPU, library) {
  library.impl("sparse_ffn", sparse_ffn);
  library.impl("sparse_projection", sparse_projection);
  library.impl("dense_projection", dense_projection);
}
