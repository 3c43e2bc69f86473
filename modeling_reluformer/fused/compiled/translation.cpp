// `reluformer_cpu::TranslationDecoder`: all layers of a decoder for one token of some hypotheses, in one call.
// training/fast_translation.py encodes and searches; translation_kernels.cpp has the loops.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "instruction_sets.h"
#include "translation_kernels.h"

namespace {

using at::Tensor;
using reluformer::kInputs;
using reluformer::kOutputs;
using reluformer::PackedBytes;
using reluformer::TranslationKernels;

constexpr int64_t kWorkOfAThread = 1 << 15;  // multiplications; with fewer, a second thread costs more than it gains

reluformer::InstructionSets<TranslationKernels>& instruction_sets() {
  static reluformer::InstructionSets<TranslationKernels> sets{&reluformer::avx512::translation_kernels, &reluformer::avx2::translation_kernels,
                                                              &reluformer::portable::translation_kernels};
  return sets;
}

const TranslationKernels& kernels() {
  return *instruction_sets().chosen;
}

template <typename Function>
void for_each(int64_t count, int64_t work_of_each, Function function) {
  const int64_t grain = std::max<int64_t>(1, kWorkOfAThread / std::max<int64_t>(1, work_of_each));
  at::parallel_for(0, count, grain, function);
}

// A linear layer of float32 or bfloat16 weights, which torch multiplies, or of int8 weights with a scale for each output.
struct Linear {
  Tensor weight, bias;                // (outputs, inputs) of a float type; undefined for int8
  Tensor packed, scales, biases, sums;
  int64_t inputs = 0, outputs = 0;

  Linear() = default;
  Linear(const Tensor& given, const Tensor& given_bias, const Tensor& given_scales) : inputs(given.size(1)), outputs(given.size(0)) {
    if (given.scalar_type() != at::kChar) {
      weight = given;
      bias = given_bias;
      return;
    }
    const int64_t blocks = reluformer::round_up(outputs, kOutputs) / kOutputs, steps = reluformer::round_up(inputs, kInputs) / kInputs;
    packed = at::empty({blocks, steps, kOutputs, kInputs}, at::kChar).zero_();
    auto* to = packed.mutable_data_ptr<int8_t>();
    const auto* from = given.const_data_ptr<int8_t>();
    sums = at::empty({blocks * kOutputs}, at::kInt).zero_();
    auto* sum = sums.mutable_data_ptr<int32_t>();
    for (int64_t n = 0; n < outputs; ++n) {
      for (int64_t i = 0; i < inputs; ++i) {
        to[((n / kOutputs * steps + i / kInputs) * kOutputs + n % kOutputs) * kInputs + i % kInputs] = from[n * inputs + i];
        sum[n] += 128 * from[n * inputs + i];
      }
    }
    scales = given_scales.contiguous();
    biases = given_bias.defined() ? given_bias.contiguous() : at::empty({outputs}, at::kFloat).zero_();
  }

  // (rows, inputs) → (rows, outputs), of float32
  Tensor operator()(const Tensor& x) const {
    if (weight.defined()) {
      const auto kind = weight.scalar_type();
      return at::linear(x.to(kind), weight, bias).to(at::kFloat);
    }
    const int64_t rows = x.size(0), stride = reluformer::round_up(inputs, kInputs), blocks = packed.size(0);
    const Tensor output = at::empty({rows, outputs}, at::kFloat);
    const auto bytes = std::make_unique_for_overwrite<uint8_t[]>(rows * stride);
    const auto row_scales = std::make_unique_for_overwrite<float[]>(rows);
    kernels().quantize(x.const_data_ptr<float>(), rows, inputs, bytes.get(), stride, row_scales.get());
    const PackedBytes matrix{packed.const_data_ptr<int8_t>(), scales.const_data_ptr<float>(), biases.const_data_ptr<float>(),
                             sums.const_data_ptr<int32_t>(), inputs, outputs};
    auto* to = output.mutable_data_ptr<float>();
    for_each(blocks, rows * stride * kOutputs / 8, [&](int64_t begin, int64_t end) {
      kernels().multiply(matrix, bytes.get(), stride, row_scales.get(), rows, begin, end, to);
    });
    return output;
  }
};

struct Norm {
  Tensor weight, bias;

  void add(const Tensor& states, const Tensor& updates) const {
    const int64_t rows = states.size(0), width = states.size(1);
    auto* to = states.mutable_data_ptr<float>();
    const auto* from = updates.const_data_ptr<float>();
    for_each(rows, 8 * width, [&](int64_t begin, int64_t end) {
      kernels().add_and_norm(to + begin * width, from + begin * width, end - begin, width, weight.const_data_ptr<float>(), bias.const_data_ptr<float>(), 1e-5f);
    });
  }
};

struct Layer {
  Linear self_in, self_out, cross_in, cross_out, first, second;
  Norm self_norm, cross_norm, last_norm;
  Tensor self_factors, cross_factors;  // (heads,) of the row scales
};

// The keys and values of some hypotheses, and of their sources.
struct State : torch::CustomClassHolder {
  std::vector<Tensor> own;     // of each layer: (positions, rows, 2 · features), keys before values
  std::vector<Tensor> cross;   // of each layer: (sources, length, 2 · features)
  std::vector<int64_t> lengths;  // of the sources
  std::vector<int32_t> sources;  // of each row
  std::vector<int32_t> places;   // (positions, rows as they are now): the row that wrote a position of the past of a row
  int64_t most_rows = 0, position = 0;

  State(std::vector<Tensor> cross_states, const std::vector<int64_t>& source_lengths, int64_t positions, int64_t beams)
      : cross(std::move(cross_states)), lengths(source_lengths), most_rows(static_cast<int64_t>(source_lengths.size()) * beams) {
    for (const Tensor& each : cross) {
      own.push_back(at::empty({positions, most_rows, each.size(2)}, at::kFloat));
    }
    for (int64_t row = 0; row < most_rows; ++row) {
      sources.push_back(static_cast<int32_t>(row / beams));
    }
    places.resize(positions * most_rows);
  }

  // The rows become those of `parents`, which may leave some out.
  void choose(const Tensor& parents) {
    const int64_t rows = parents.size(0), before = static_cast<int64_t>(sources.size());
    const auto* from = parents.const_data_ptr<int64_t>();
    std::vector<int32_t> row_places(before);
    for (int64_t t = 0; t < position; ++t) {
      std::copy_n(places.begin() + t * before, before, row_places.begin());
      for (int64_t row = 0; row < rows; ++row) {
        places[t * rows + row] = row_places[from[row]];
      }
    }
    const std::vector<int32_t> old = sources;
    sources.resize(rows);
    for (int64_t row = 0; row < rows; ++row) {
      sources[row] = old[from[row]];
    }
  }
};

struct Decoder : torch::CustomClassHolder {
  std::vector<Layer> layers;
  Linear output;
  Tensor embedding, positions, row_scales;  // row_scales: (keys + 1,) by the number of visible keys; undefined for a softmax
  int64_t heads, activation;
  double embedding_scale;

  // tensors: embedding, positions, row_scales, output (weight, bias, scales), and of each layer self_in, self_out, cross_in, cross_out, first, second
  // (weight, bias, scales each), three norms (weight, bias) and the factors of two attentions. Those that do not exist are empty.
  Decoder(const std::vector<Tensor>& tensors, int64_t decoder_heads, int64_t decoder_activation, double scale)
      : heads(decoder_heads), activation(decoder_activation), embedding_scale(scale) {
    size_t next = 0;
    auto take = [&] { return tensors[next++]; };
    auto take_linear = [&] {
      const Tensor weight = take(), bias = take(), scales = take();
      return Linear(weight, bias.numel() ? bias : Tensor(), scales);
    };
    auto take_norm = [&] {
      const Tensor weight = take(), bias = take();
      return Norm{weight, bias};
    };
    embedding = take();
    positions = take();
    row_scales = take();
    output = take_linear();
    while (next < tensors.size()) {
      Layer layer;
      for (Linear* linear : {&layer.self_in, &layer.self_out, &layer.cross_in, &layer.cross_out, &layer.first, &layer.second}) {
        *linear = take_linear();
      }
      for (Norm* norm : {&layer.self_norm, &layer.cross_norm, &layer.last_norm}) {
        *norm = take_norm();
      }
      layer.self_factors = take();
      layer.cross_factors = take();
      layers.push_back(std::move(layer));
    }
  }

  // tokens: (rows,), the last of each hypothesis → logits (rows, vocabulary). parents: see `State::choose`.
  Tensor step(const c10::intrusive_ptr<State>& state, const Tensor& tokens, const std::optional<Tensor>& parents) const {
    if (parents) {
      state->choose(*parents);
    }
    const int64_t rows = tokens.size(0), t = state->position;
    TORCH_CHECK_VALUE(rows == static_cast<int64_t>(state->sources.size()) && t < state->own[0].size(0), "TranslationDecoder: ", rows, " tokens for ",
                      state->sources.size(), " rows at position ", t);
    for (int64_t row = 0; row < rows; ++row) {
      state->places[t * rows + row] = static_cast<int32_t>(row);
    }
    const Tensor states = embedded(tokens, t);
    for (size_t index = 0; index < layers.size(); ++index) {
      const Layer& layer = layers[index];
      layer.self_norm.add(states, layer.self_out(self_attention(layer, *state, index, states)));
      layer.cross_norm.add(states, layer.cross_out(cross_attention(layer, *state, index, states)));
      layer.last_norm.add(states, layer.second(layer.first(states).relu_()));
    }
    ++state->position;
    return output(states);
  }

  Tensor embedded(const Tensor& tokens, int64_t t) const {
    const int64_t rows = tokens.size(0), features = embedding.size(1);
    const Tensor states = at::empty({rows, features}, at::kFloat);
    const auto *from = embedding.const_data_ptr<float>(), *position = positions.const_data_ptr<float>() + t * features;
    const auto* ids = tokens.const_data_ptr<int64_t>();
    auto* to = states.mutable_data_ptr<float>();
    const auto factor = static_cast<float>(embedding_scale);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < features; ++i) {
        to[row * features + i] = from[ids[row] * features + i] * factor + position[i];
      }
    }
    return states;
  }

  Tensor self_attention(const Layer& layer, State& state, size_t index, const Tensor& states) const {
    const Tensor projected = layer.self_in(states);  // (rows, 3 · features)
    const int64_t rows = states.size(0), features = states.size(1), t = state.position, pair = 2 * features;
    const auto* from = projected.const_data_ptr<float>();
    auto* own = state.own[index].mutable_data_ptr<float>();
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(from + row * 3 * features + features, pair, own + (t * state.most_rows + row) * pair);
    }
    return attend(rows, features, t + 1, layer.self_factors, [&](int64_t row, int64_t head, reluformer::Cached& call) {
      call.query = from + row * 3 * features + head * call.dims;
      call.keys = own + head * call.dims;
      call.values = call.keys + features;
      call.length = t + 1;
      call.position = state.most_rows * pair;
      call.row = pair;
      call.places = state.places.data() + row;
      call.places_stride = rows;
    });
  }

  Tensor cross_attention(const Layer& layer, const State& state, size_t index, const Tensor& states) const {
    const Tensor query = layer.cross_in(states);
    const int64_t rows = states.size(0), features = states.size(1), length = state.cross[index].size(1), pair = 2 * features;
    const auto *from = query.const_data_ptr<float>(), *keys = state.cross[index].const_data_ptr<float>();
    return attend(rows, features, length, layer.cross_factors, [&](int64_t row, int64_t head, reluformer::Cached& call) {
      const int64_t source = state.sources[row];
      call.query = from + row * features + head * call.dims;
      call.keys = keys + source * length * pair + head * call.dims;
      call.values = call.keys + features;
      call.length = state.lengths[source];
      call.position = pair;
      call.places = nullptr;
    });
  }

  template <typename Fill>
  Tensor attend(int64_t rows, int64_t features, int64_t longest, const Tensor& factors, Fill fill) const {
    const Tensor output = at::empty({rows, features}, at::kFloat);
    auto* to = output.mutable_data_ptr<float>();
    const int64_t dims = features / heads;
    const float scale = 1.0f / std::sqrt(static_cast<float>(dims));
    const auto* row_scale = row_scales.numel() ? row_scales.const_data_ptr<float>() : nullptr;
    const auto* head_factors = factors.const_data_ptr<float>();
    for_each(rows * heads, 2 * longest * dims, [&](int64_t begin, int64_t end) {
      std::vector<float> room(longest);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / heads, head = i % heads;
        reluformer::Cached call{};
        call.dims = dims;
        call.scale = scale;
        fill(row, head, call);
        call.row_scale = row_scale ? row_scale[call.length] * head_factors[head] : 0.0f;
        kernels().attend(call, activation, room.data(), to + row * features + head * dims);
      }
    });
    return output;
  }
};

// The best continuations of each sentence, which has `beams` neighbouring rows: log-probabilities + scores, and row · vocabulary + token.
std::tuple<Tensor, Tensor> continuations(const Tensor& logits, const Tensor& scores, int64_t beams, int64_t count) {
  const int64_t rows = logits.size(0), width = logits.size(1), sentences = rows / beams;
  const Tensor numbers = at::empty({sentences, count}, at::kFloat), places = at::empty({sentences, count}, at::kLong);
  const auto* from = logits.const_data_ptr<float>();
  const auto* before = scores.const_data_ptr<float>();
  auto* to = numbers.mutable_data_ptr<float>();
  auto* to_places = places.mutable_data_ptr<int64_t>();
  for_each(sentences, beams * width, [&](int64_t begin, int64_t end) {
    std::vector<float> found(count * beams);
    std::vector<int64_t> found_places(count * beams), order(count * beams);
    for (int64_t sentence = begin; sentence < end; ++sentence) {
      for (int64_t beam = 0; beam < beams; ++beam) {
        const int64_t row = sentence * beams + beam;
        kernels().largest(from + row * width, width, count, found.data() + beam * count, found_places.data() + beam * count);
        const float shift = kernels().log_sum(from + row * width, width);
        for (int64_t i = beam * count; i < (beam + 1) * count; ++i) {
          found[i] = (found[i] - shift) + before[row];
          found_places[i] += beam * width;
          order[i] = i;
        }
      }
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return found[a] > found[b]; });
      for (int64_t i = 0; i < count; ++i) {
        to[sentence * count + i] = found[order[i]];
        to_places[sentence * count + i] = found_places[order[i]];
      }
    }
  });
  return {numbers, places};
}

// A linear layer by itself, for the encoder.
struct Projection : torch::CustomClassHolder {
  Linear linear;
  Projection(const Tensor& weight, const Tensor& bias, const Tensor& scales) : linear(weight, bias.numel() ? bias : Tensor(), scales) {}
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(reluformer_cpu, library) {
  library.class_<State>("TranslationState").def(torch::init<std::vector<Tensor>, const std::vector<int64_t>&, int64_t, int64_t>());
  library.class_<Projection>("TranslationLinear")
      .def(torch::init<const Tensor&, const Tensor&, const Tensor&>())
      .def("apply", [](const c10::intrusive_ptr<Projection>& self, const Tensor& x) { return self->linear(x.contiguous()); });
  library.class_<Decoder>("TranslationDecoder")
      .def(torch::init<const std::vector<Tensor>&, int64_t, int64_t, double>())
      .def("step", &Decoder::step);
  library.def("continuations(Tensor logits, Tensor scores, int beams, int count) -> (Tensor, Tensor)");
  library.def("translation_instruction_sets() -> str[]", [] { return instruction_sets().names; });
  library.def("choose_translation_instruction_set(str name) -> ()", [](std::string_view name) { instruction_sets().choose(name); });
}

TORCH_LIBRARY_IMPL(reluformer_cpu, CPU, library) {
  library.impl("continuations", continuations);
}
