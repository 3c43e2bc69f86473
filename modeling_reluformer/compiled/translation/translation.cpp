// `reluformer_cpu::TranslationModel`: the encoder of some sources, and all layers of a decoder for one token of some
// hypotheses, each in one call. translating/fast_translation.py searches; translation_kernels.cpp has the loops.
//
// States and logits are the same to the bit, whatever else is in the batch, and with every instruction set and number
// of threads: products of bytes are exact, and each sum of floats has one order.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "instruction_sets.h"

namespace {

using at::Tensor;
using reluformer::in_panels;
using reluformer::in_rows;
using reluformer::kColumns;
using reluformer::kDepth;
using reluformer::kInputs;
using reluformer::kOutputs;
using reluformer::Matrix;
using reluformer::PackedBytes;
using reluformer::PackedFloats;
using reluformer::Weighing;

constexpr int64_t kSourceQueries = 32;       // of a source that are computed together
constexpr int64_t kWorkOfAThread = 1 << 15;  // multiplications; with fewer, a second thread costs more than it gains
constexpr float kNormEpsilon = 1e-5f;        // that of torch's LayerNorm

const reluformer::TranslationKernels& kernels() { return *reluformer::chosen_set()->translation; }

template <typename Function>
void for_each(int64_t count, int64_t work_of_each, Function function) {
  const int64_t grain = std::max<int64_t>(1, kWorkOfAThread / std::max<int64_t>(1, work_of_each));
  at::parallel_for(0, count, grain, function);
}

int64_t blocks_of(int64_t outputs) { return reluformer::round_up(outputs, kOutputs) / kOutputs; }

// Weights at from + output · output_stride + input · input_stride → those of `PackedFloats`.
void pack(const float* from, int64_t outputs, int64_t inputs, int64_t output_stride, int64_t input_stride, float* to) {
  std::fill_n(to + outputs / kOutputs * kOutputs * inputs,
              (blocks_of(outputs) - outputs / kOutputs) * kOutputs * inputs, 0.0f);
  for (int64_t n = 0; n < outputs; ++n) {
    for (int64_t i = 0; i < inputs; ++i) {
      to[(n / kOutputs * inputs + i) * kOutputs + n % kOutputs] = from[n * output_stride + i * input_stride];
    }
  }
}

// Rows as the first factor of a product: as they lie, or if they are many, copied to panels. Rows that are a power of
// two apart, as those of most models are, share few lines of the first cache.
Matrix<const float> as_factor(const Tensor& rows, Tensor& room) {
  constexpr int64_t kFewRows = 8;
  const int64_t count = rows.size(0), width = rows.size(1);
  const auto* from = rows.const_data_ptr<float>();
  if (count <= kFewRows) {
    return {from, in_rows(width)};
  }
  const reluformer::Layout panels = in_panels(count);
  room = at::empty({reluformer::round_up(width, kColumns) * count}, at::kFloat);
  auto* to = room.mutable_data_ptr<float>();
  for_each((width + kColumns - 1) / kColumns, count * kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t column = begin * kColumns; column < std::min(end * kColumns, width); column += kColumns) {
        std::copy_n(from + row * width + column, std::min(kColumns, width - column), to + panels.offset(row, column));
      }
    }
  });
  return {to, panels};
}

// A linear layer of float32 weights, or of int8 weights with a scale for each output.
struct Linear {
  Tensor packed, biases, scales, sums;  // scales and sums: of int8
  int64_t inputs = 0, outputs = 0;

  Linear() = default;
  Linear(const Tensor& weights, const Tensor& bias, const Tensor& output_scales)
      : inputs(weights.size(1)), outputs(weights.size(0)) {
    biases = bias.numel() ? bias.contiguous() : at::empty({outputs}, at::kFloat).zero_();
    if (weights.scalar_type() == at::kFloat) {
      packed = at::empty({blocks_of(outputs), inputs, kOutputs}, at::kFloat);
      pack(weights.const_data_ptr<float>(), outputs, inputs, inputs, 1, packed.mutable_data_ptr<float>());
      return;
    }
    const int64_t blocks = blocks_of(outputs), steps = reluformer::round_up(inputs, kDepth) / kInputs;
    packed = at::empty({blocks, steps, kOutputs, kInputs}, at::kChar).zero_();
    auto* to = packed.mutable_data_ptr<int8_t>();
    const auto* from = weights.const_data_ptr<int8_t>();
    sums = at::empty({blocks * kOutputs}, at::kInt).zero_();
    auto* sum = sums.mutable_data_ptr<int32_t>();
    for (int64_t n = 0; n < outputs; ++n) {
      for (int64_t i = 0; i < inputs; ++i) {
        to[((n / kOutputs * steps + i / kInputs) * kOutputs + n % kOutputs) * kInputs + i % kInputs] =
            from[n * inputs + i];
        sum[n] += 128 * from[n * inputs + i];
      }
    }
    scales = output_scales.contiguous();
  }

  // (rows, inputs) → (rows, outputs), of float32
  Tensor operator()(const Tensor& x) const {
    const int64_t rows = x.size(0), stride = reluformer::round_up(inputs, kDepth), blocks = packed.size(0);
    const Tensor output = at::empty({rows, outputs}, at::kFloat);
    auto* to = output.mutable_data_ptr<float>();
    if (!scales.defined()) {
      const PackedFloats matrix{packed.const_data_ptr<float>(), biases.const_data_ptr<float>(), inputs, outputs};
      Tensor room;
      const Matrix<const float> from = as_factor(x, room);
      for_each(blocks, rows * inputs * kOutputs, [&](int64_t begin, int64_t end) {
        kernels().multiply_floats(matrix, from, rows, begin, end, to, outputs);
      });
      return output;
    }
    const auto bytes = std::make_unique_for_overwrite<uint8_t[]>(rows * stride);
    const auto row_scales = std::make_unique_for_overwrite<float[]>(rows);
    kernels().quantize(x.const_data_ptr<float>(), rows, inputs, bytes.get(), stride, row_scales.get());
    const PackedBytes matrix{packed.const_data_ptr<int8_t>(),
                             scales.const_data_ptr<float>(),
                             biases.const_data_ptr<float>(),
                             sums.const_data_ptr<int32_t>(),
                             inputs,
                             outputs};
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
      kernels().add_and_norm(to + begin * width, from + begin * width, end - begin, width,
                             weight.const_data_ptr<float>(), bias.const_data_ptr<float>(), kNormEpsilon);
    });
  }
};

// In the encoder, what begins with `cross` is empty.
struct Layer {
  Linear self_in, self_out, cross_in, cross_keys_and_values, cross_out, first, second;
  Norm self_norm, cross_norm, last_norm;
  Tensor self_factors, cross_factors;  // (heads,) of the row scales
};

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), int64_t{0});
  return offsets;
}

// The keys and values of one head of a source, packed for both products of an attention.
struct PackedHead {
  int64_t tokens, dims;

  int64_t size() const { return (blocks_of(tokens) * dims + blocks_of(dims) * tokens) * kOutputs; }

  // keys, values: of the first token; those of the next are `stride` further
  void fill(const float* keys, const float* values, int64_t stride, float* to) const {
    pack(keys, tokens, dims, stride, 1, to);
    pack(values, dims, tokens, 1, stride, to + blocks_of(tokens) * dims * kOutputs);
  }

  // queries, to: (count, stride) and (count, to_stride). room: (count, tokens)
  void attend(const float* packed, const float* queries, int64_t stride, int64_t count, const Weighing& weighing,
              float* room, float* to, int64_t to_stride) const {
    const PackedFloats keys{packed, nullptr, dims, tokens},
        values{packed + blocks_of(tokens) * dims * kOutputs, nullptr, tokens, dims};
    kernels().multiply_floats(keys, {queries, in_rows(stride)}, count, 0, blocks_of(tokens), room, tokens);
    for (int64_t row = 0; row < count; ++row) {
      kernels().weigh(room + row * tokens, tokens, weighing);
    }
    kernels().multiply_floats(values, {room, in_rows(tokens)}, count, 0, blocks_of(dims), to, to_stride);
  }
};

// The keys and values of some hypotheses, and of their sources.
struct State : torch::CustomClassHolder {
  std::vector<Tensor> own;                // of each layer: (positions, rows, 2 · features), keys before values
  std::vector<Tensor> cross;              // of each layer: the packed heads of each source
  std::vector<int64_t> lengths, offsets;  // of the sources: tokens, and where their packed heads begin
  std::vector<int32_t> sources;           // of each row, in rising order
  // (positions, rows as they are now): the row that wrote a position of the past of a row
  std::vector<int32_t> cache_rows;
  int64_t most_rows = 0, position = 0;

  // cross_states: of each layer: (tokens of all sources, 2 · features), keys before values
  State(const std::vector<Tensor>& cross_states, const std::vector<int64_t>& source_lengths, int64_t positions,
        int64_t beams, int64_t heads)
      : lengths(source_lengths), most_rows(static_cast<int64_t>(source_lengths.size()) * beams) {
    const int64_t features = cross_states[0].size(1) / 2, dims = features / heads;
    std::vector<int64_t> sizes;
    for (const int64_t length : lengths) {
      sizes.push_back(heads * PackedHead{length, dims}.size());
    }
    offsets = offsets_of(sizes);
    const std::vector<int64_t> tokens_before = offsets_of(lengths);
    for (const Tensor& each : cross_states) {
      own.push_back(at::empty({positions, most_rows, 2 * features}, at::kFloat));
      cross.push_back(at::empty({offsets.back() + sizes.back()}, at::kFloat));
      const auto* from = each.const_data_ptr<float>();
      auto* to = cross.back().mutable_data_ptr<float>();
      for_each(static_cast<int64_t>(lengths.size()) * heads, 2 * sizes.back() / heads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t source = i / heads, head = i % heads;
          const PackedHead packed{lengths[source], dims};
          const float* keys = from + tokens_before[source] * 2 * features + head * dims;
          packed.fill(keys, keys + features, 2 * features, to + offsets[source] + head * packed.size());
        }
      });
    }
    for (int64_t row = 0; row < most_rows; ++row) {
      sources.push_back(static_cast<int32_t>(row / beams));
    }
    cache_rows.resize(positions * most_rows);
  }

  // The rows become those of `parents`, which may leave some out.
  void choose(const Tensor& parents) {
    const int64_t rows = parents.size(0), before = static_cast<int64_t>(sources.size());
    const auto* from = parents.const_data_ptr<int64_t>();
    std::vector<int32_t> old_rows(before);
    for (int64_t t = 0; t < position; ++t) {
      std::copy_n(cache_rows.begin() + t * before, before, old_rows.begin());
      for (int64_t row = 0; row < rows; ++row) {
        cache_rows[t * rows + row] = old_rows[from[row]];
      }
    }
    const std::vector<int32_t> old = sources;
    sources.resize(rows);
    for (int64_t row = 0; row < rows; ++row) {
      sources[row] = old[from[row]];
    }
  }
};

struct Model : torch::CustomClassHolder {
  std::vector<Layer> encoder, decoder;
  Linear output;
  Tensor source_embedding, target_embedding, positions;
  Tensor row_scales;  // (keys + 1,) by the number of visible keys; empty for a softmax
  int64_t encoder_heads, decoder_heads;
  int64_t activation;  // a DecodingActivation
  double embedding_scale;

  // tensors: source_embedding, target_embedding, positions, row_scales, output; and the fields of each layer, in their
  // order. A linear layer is weight, bias and scales, a norm weight and bias. Those that do not exist are empty.
  Model(const std::vector<Tensor>& tensors, int64_t encoder_layers, int64_t heads_of_encoder, int64_t heads_of_decoder,
        const std::string& attention_activation, double scale)
      : encoder_heads(heads_of_encoder),
        decoder_heads(heads_of_decoder),
        activation(reluformer::number_of(reluformer::kDecodingActivations, attention_activation)),
        embedding_scale(scale) {
    size_t next = 0;
    auto take = [&] { return tensors[next++]; };
    auto take_linears = [&](std::initializer_list<Linear*> linears) {
      for (Linear* linear : linears) {
        const Tensor weight = take(), bias = take(), scales = take();
        *linear = Linear(weight, bias, scales);
      }
    };
    auto take_norm = [&] {
      const Tensor weight = take(), bias = take();
      return Norm{weight, bias};
    };
    source_embedding = take();
    target_embedding = take();
    positions = take();
    row_scales = take();
    take_linears({&output});
    while (next < tensors.size()) {
      const bool crosses = static_cast<int64_t>(encoder.size()) == encoder_layers;
      Layer& layer = (crosses ? decoder : encoder).emplace_back();
      take_linears({&layer.self_in, &layer.self_out});
      if (crosses) {
        take_linears({&layer.cross_in, &layer.cross_keys_and_values, &layer.cross_out});
      }
      take_linears({&layer.first, &layer.second});
      layer.self_norm = take_norm();
      layer.cross_norm = crosses ? take_norm() : Norm{};
      layer.last_norm = take_norm();
      layer.self_factors = take();
      layer.cross_factors = crosses ? take() : Tensor{};
    }
  }

  // Keys and values of the sources for each layer of the decoder, (tokens, 2 · features). ids: (tokens,) of all
  // sources, one after the other.
  std::vector<Tensor> encode(const Tensor& ids, const std::vector<int64_t>& lengths) const {
    const std::vector<int64_t> offsets = offsets_of(lengths);
    const Tensor states = at::empty({ids.size(0), target_embedding.size(1)}, at::kFloat);
    for (size_t source = 0; source < lengths.size(); ++source) {
      for (int64_t t = 0; t < lengths[source]; ++t) {
        embed(source_embedding, ids, offsets[source] + t, t, states);
      }
    }
    for (const Layer& layer : encoder) {
      layer.self_norm.add(states, layer.self_out(source_attention(layer, layer.self_in(states), lengths, offsets)));
      layer.last_norm.add(states, layer.second(layer.first(states).relu_()));
    }
    std::vector<Tensor> cross;
    for (const Layer& layer : decoder) {
      cross.push_back(layer.cross_keys_and_values(states));
    }
    return cross;
  }

  // tokens: (rows,), the last of each hypothesis → logits (rows, vocabulary). parents: see `State::choose`.
  Tensor step(const c10::intrusive_ptr<State>& state, const Tensor& tokens,
              const std::optional<Tensor>& parents) const {
    if (parents) {
      state->choose(*parents);
    }
    const int64_t rows = tokens.size(0), t = state->position;
    TORCH_CHECK_VALUE(rows == static_cast<int64_t>(state->sources.size()) && t < state->own[0].size(0),
                      "TranslationModel: ", rows, " tokens for ", state->sources.size(), " rows at position ", t);
    for (int64_t row = 0; row < rows; ++row) {
      state->cache_rows[t * rows + row] = static_cast<int32_t>(row);
    }
    const Tensor states = at::empty({rows, target_embedding.size(1)}, at::kFloat);
    for (int64_t row = 0; row < rows; ++row) {
      embed(target_embedding, tokens, row, t, states);
    }
    for (size_t index = 0; index < decoder.size(); ++index) {
      const Layer& layer = decoder[index];
      layer.self_norm.add(states, layer.self_out(self_attention(layer, *state, index, states)));
      layer.cross_norm.add(states, layer.cross_out(cross_attention(layer, *state, index, states)));
      layer.last_norm.add(states, layer.second(layer.first(states).relu_()));
    }
    ++state->position;
    return output(states);
  }

  // states[row] = table[ids[row]] · scale + positions[t]
  void embed(const Tensor& table, const Tensor& ids, int64_t row, int64_t t, const Tensor& states) const {
    const int64_t features = table.size(1);
    const auto *from = table.const_data_ptr<float>() + ids.const_data_ptr<int64_t>()[row] * features,
               *position = positions.const_data_ptr<float>() + t * features;
    auto* to = states.mutable_data_ptr<float>() + row * features;
    const auto factor = static_cast<float>(embedding_scale);
    for (int64_t i = 0; i < features; ++i) {
      to[i] = from[i] * factor + position[i];
    }
  }

  Tensor self_attention(const Layer& layer, State& state, size_t index, const Tensor& states) const {
    const Tensor projected = layer.self_in(states);  // (rows, 3 · features)
    const int64_t rows = states.size(0), features = states.size(1), t = state.position, pair = 2 * features;
    const auto* from = projected.const_data_ptr<float>();
    auto* own = state.own[index].mutable_data_ptr<float>();
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(from + row * 3 * features + features, pair, own + (t * state.most_rows + row) * pair);
    }
    const int64_t dims = features / decoder_heads;
    const Tensor output = at::empty({rows, features}, at::kFloat);
    auto* to = output.mutable_data_ptr<float>();
    for_each(rows * decoder_heads, 2 * (t + 1) * dims, [&](int64_t begin, int64_t end) {
      std::vector<float> room(t + 1);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / decoder_heads, head = i % decoder_heads;
        const float* keys = own + head * dims;
        const reluformer::Cached call{from + row * 3 * features + head * dims,
                                      keys,
                                      keys + features,
                                      t + 1,
                                      state.most_rows * pair,
                                      pair,
                                      state.cache_rows.data() + row,
                                      rows,
                                      dims};
        kernels().attend(call, weighing(layer.self_factors, head, dims, t + 1), room.data(),
                         to + row * features + head * dims);
      }
    });
    return output;
  }

  // The hypotheses of a source, which are neighbours, at once.
  Tensor cross_attention(const Layer& layer, const State& state, size_t index, const Tensor& states) const {
    const Tensor query = layer.cross_in(states), output = at::empty_like(states);
    const int64_t rows = states.size(0), features = states.size(1), dims = features / decoder_heads;
    const int64_t longest = *std::max_element(state.lengths.begin(), state.lengths.end());
    std::vector<int64_t> firsts;
    int64_t most = 0;
    for (int64_t row = 0; row < rows; ++row) {
      if (!row || state.sources[row] != state.sources[row - 1]) {
        firsts.push_back(row);
      }
      most = std::max(most, row + 1 - firsts.back());
    }
    const auto count = static_cast<int64_t>(firsts.size());
    firsts.push_back(rows);
    const auto *from = query.const_data_ptr<float>(), *packed = state.cross[index].const_data_ptr<float>();
    auto* to = output.mutable_data_ptr<float>();
    for_each(count * decoder_heads, 2 * longest * dims * most, [&](int64_t begin, int64_t end) {
      std::vector<float> room(longest * most);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = firsts[i / decoder_heads], head = i % decoder_heads, source = state.sources[row],
                      column = row * features + head * dims;
        const PackedHead keys_and_values{state.lengths[source], dims};
        keys_and_values.attend(packed + state.offsets[source] + head * keys_and_values.size(), from + column, features,
                               firsts[i / decoder_heads + 1] - row,
                               weighing(layer.cross_factors, head, dims, keys_and_values.tokens), room.data(),
                               to + column, features);
      }
    });
    return output;
  }

  // projected: queries, keys and values of each token, (tokens, 3 · features)
  Tensor source_attention(const Layer& layer, const Tensor& projected, const std::vector<int64_t>& lengths,
                          const std::vector<int64_t>& offsets) const {
    const int64_t features = projected.size(1) / 3, dims = features / encoder_heads, stride = 3 * features;
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const Tensor output = at::empty({projected.size(0), features}, at::kFloat);
    const auto* from = projected.const_data_ptr<float>();
    auto* to = output.mutable_data_ptr<float>();
    for_each(static_cast<int64_t>(lengths.size()) * encoder_heads, 2 * longest * longest * dims,
             [&](int64_t begin, int64_t end) {
               std::vector<float> packed(PackedHead{longest, dims}.size()), room(kSourceQueries * longest);
               for (int64_t i = begin; i < end; ++i) {
                 const int64_t source = i / encoder_heads, head = i % encoder_heads;
                 const PackedHead keys_and_values{lengths[source], dims};
                 const float* queries = from + offsets[source] * stride + head * dims;
                 keys_and_values.fill(queries + features, queries + 2 * features, stride, packed.data());
                 const Weighing how = weighing(layer.self_factors, head, dims, lengths[source]);
                 for (int64_t first = 0; first < lengths[source]; first += kSourceQueries) {
                   keys_and_values.attend(packed.data(), queries + first * stride, stride,
                                          std::min(kSourceQueries, lengths[source] - first), how, room.data(),
                                          to + (offsets[source] + first) * features + head * dims, features);
                 }
               }
             });
    return output;
  }

  // keys: that a query of the head sees
  Weighing weighing(const Tensor& factors, int64_t head, int64_t dims, int64_t keys) const {
    const float row_scale =
        row_scales.numel() ? row_scales.const_data_ptr<float>()[keys] * factors.const_data_ptr<float>()[head] : 0.0f;
    return {activation, 1.0f / std::sqrt(static_cast<float>(dims)), row_scale};
  }
};

// The best continuations of each sentence, which has `beams` neighbouring rows: log-probabilities + scores, and row ·
// vocabulary + token.
std::tuple<Tensor, Tensor> continuations(const Tensor& logits, const Tensor& scores, int64_t beams, int64_t count) {
  const int64_t rows = logits.size(0), width = logits.size(1), sentences = rows / beams;
  const Tensor numbers = at::empty({sentences, count}, at::kFloat), indices = at::empty({sentences, count}, at::kLong);
  const auto* from = logits.const_data_ptr<float>();
  const auto* before = scores.const_data_ptr<float>();
  auto* to = numbers.mutable_data_ptr<float>();
  auto* to_indices = indices.mutable_data_ptr<int64_t>();
  for_each(sentences, beams * width, [&](int64_t begin, int64_t end) {
    std::vector<float> candidates(count * beams);
    std::vector<int64_t> candidate_indices(count * beams), order(count * beams);
    for (int64_t sentence = begin; sentence < end; ++sentence) {
      for (int64_t beam = 0; beam < beams; ++beam) {
        const int64_t row = sentence * beams + beam;
        kernels().largest(from + row * width, width, count, candidates.data() + beam * count,
                          candidate_indices.data() + beam * count);
        const float shift = kernels().log_sum(from + row * width, width);
        for (int64_t i = beam * count; i < (beam + 1) * count; ++i) {
          candidates[i] = (candidates[i] - shift) + before[row];
          candidate_indices[i] += beam * width;
          order[i] = i;
        }
      }
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return candidates[a] > candidates[b]; });
      for (int64_t i = 0; i < count; ++i) {
        to[sentence * count + i] = candidates[order[i]];
        to_indices[sentence * count + i] = candidate_indices[order[i]];
      }
    }
  });
  return {numbers, indices};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reluformer_cpu, library) {
  library.class_<State>("TranslationState")
      .def(torch::init<std::vector<Tensor>, const std::vector<int64_t>&, int64_t, int64_t, int64_t>());
  library.class_<Model>("TranslationModel")
      .def(torch::init<const std::vector<Tensor>&, int64_t, int64_t, int64_t, const std::string&, double>())
      .def("encode", &Model::encode)
      .def("step", &Model::step);
  library.def("continuations(Tensor logits, Tensor scores, int beams, int count) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(reluformer_cpu, CPU, library) { library.impl("continuations", continuations); }
