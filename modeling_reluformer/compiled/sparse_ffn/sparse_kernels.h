// What of a sparse feed-forward network is compiled once for each instruction set. sparse_kernels.cpp has the code.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "matrix.h"

namespace reluformer {

// What a network's activations are, and their names in Python, in the same order.
enum FFNActivation : int64_t { kFFNIdentity, kFFNRelu, kFFNRelu2, kFFNRelu6 };
inline const std::initializer_list<std::string_view> kFFNActivations = {"identity", "relu", "relu2", "relu6"};

// The few rows that enter a projection: `stride` apart, with zeros after `dims`. Weights of float read `wide`; those
// of bfloat16 `narrow` where the processor has products of it, else `wide`; int8 weights read `bytes`, x / scale + 128.
struct InputRows {
  int64_t count, dims, stride;
  float* wide;
  BFloat16* narrow;
  uint8_t* bytes;
  float* scales;  // (count,) of `bytes`; NaN where the row holds a number that is not finite
};

// One row of weights for each neuron, `dims` long and without gaps.
template <typename Weight>
struct Neurons {
  const Weight* weights;  // null: there is none
  const float* scales;    // (neurons,) of int8 weights; null for others
  const float* biases;    // (neurons,) or null
};

// y = Σ_i f(first_i·x + b_i) · g(up_i·x + c_i) · second_i, where second_i is a row of the transposed second projection.
template <typename Weight>
struct FeedForward {
  Neurons<Weight> first;
  const float* hidden;  // f(first·x) itself, (rows, hidden_stride), where `first` is null
  int64_t hidden_stride;
  Neurons<Weight> up;      // null weights: a factor of 1
  Neurons<Weight> second;  // its biases are not read
  int64_t outputs;         // length of a row of `second`
  int64_t activation;      // f
  int64_t up_activation;   // g
  bool all_active;         // zeros are multiplied as other numbers are
};

template <typename Weight>
struct SparseKernels {
  // Adds the neurons of [begin, end) to y, (rows, y_stride), which it sets to zero first. room: (end - begin) · (rows +
  // 1) floats.
  void (*feed_forward)(const FeedForward<Weight>& ffn, const InputRows& x, int64_t begin, int64_t end, float* room,
                       float* y, int64_t y_stride);
  // f(first·x + b) of the neurons of [begin, end) → (rows, stride)
  void (*project)(const Neurons<Weight>& neurons, const InputRows& x, int64_t begin, int64_t end, int64_t activation,
                  float* to, int64_t stride);
};

struct SparseKernelSet {
  // Fills `bytes` and `scales` from `wide`.
  void (*quantize)(const InputRows& x);
  SparseKernels<float> of_float;
  SparseKernels<BFloat16> of_bfloat16;
  SparseKernels<int8_t> of_int8;
};

#ifdef __aarch64__
namespace neon {
extern const SparseKernelSet sparse_kernels;
}
namespace dotprod {
extern const SparseKernelSet sparse_kernels;
}
#else
namespace avx2 {
extern const SparseKernelSet sparse_kernels;
}
namespace avx512 {
extern const SparseKernelSet sparse_kernels;
}
#endif

}  // namespace reluformer
