// What of decoding is compiled once for each instruction set. translation_kernels.cpp has the code.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "matrix.h"

namespace reluformer {

constexpr int64_t kOutputs = kColumns, kInputs = 4;  // of a vector of packed int8 weights
constexpr int64_t kDepth = 64;  // inputs of a tile of AMX: the number of inputs is rounded up to it

// In the order of `kDecodingActivations`, whose names are those of the configuration.
enum DecodingActivation : int64_t { kDecodingRelu, kDecodingRelu2, kDecodingSoftmax };
inline const std::initializer_list<std::string_view> kDecodingActivations = {"relu", "relu2", "softmax"};

// How scores become the weights of a row: activation(scale · score) · row_scale; a softmax does not read row_scale.
struct Weighing {
  int64_t activation;
  float scale, row_scale;
};

// A query that sees `length` keys: that of position t is at
//     keys + t · position + cache_rows[t · cache_rows_stride] · row
struct Cached {
  const float *query, *keys, *values;  // of the row's head
  int64_t length, position, row;
  const int32_t* cache_rows;
  int64_t cache_rows_stride;
  int64_t dims;  // of a head
};

// A matrix of floats, packed so that one vector holds one input each of sixteen outputs: (outputs / 16, inputs, 16),
// with zeros after the outputs.
struct PackedFloats {
  const float *weights, *biases;  // biases: (outputs,), or null
  int64_t inputs, outputs;
};

// A matrix of int8 weights, packed so that one vector holds four inputs each of sixteen outputs: (outputs / 16, inputs
// / 4, 16, 4), with zeros after both. Sixteen such vectors are a tile of AMX.
struct PackedBytes {
  const int8_t* weights;
  const float *scales, *biases;  // (outputs,)
  const int32_t* sums;           // (outputs rounded up,): 128 · Σ of an output's weights
  int64_t inputs, outputs;       // as they are, not rounded up
};

struct TranslationKernels {
  // One row's head: output (dims,). room: (length,)
  void (*attend)(const Cached& call, const Weighing& weighing, float* room, float* output);
  // Scores of a row → weights, written over them.
  void (*weigh)(float* scores, int64_t width, const Weighing& weighing);
  // Outputs of the blocks of sixteen in [begin, end), to (count, to_stride), for the `count` rows of a matrix.
  void (*multiply_floats)(const PackedFloats& matrix, const Matrix<const float>& from, int64_t count, int64_t begin,
                          int64_t end, float* to, int64_t to_stride);
  // Rows (count, width) → bytes x / scale + 128 (count, stride) and scales; stride is width rounded up to 64, with
  // bytes of 128 after it.
  void (*quantize)(const float* from, int64_t count, int64_t width, uint8_t* bytes, int64_t stride, float* scales);
  // Outputs of the blocks of sixteen in [begin, end) for all rows: to (count, outputs).
  void (*multiply)(const PackedBytes& matrix, const uint8_t* bytes, int64_t stride, const float* scales, int64_t count,
                   int64_t begin, int64_t end, float* to);
  // norm(states + updates) · weight + bias of (count, width) rows, written over the states
  void (*add_and_norm)(float* states, const float* updates, int64_t count, int64_t width, const float* weight,
                       const float* bias, float epsilon);
  // log Σ exp of a row
  float (*log_sum)(const float* row, int64_t width);
  // The `count` largest numbers of a row, in falling order: numbers and their indices.
  void (*largest)(const float* row, int64_t width, int64_t count, float* numbers, int64_t* indices);
};

#ifdef __aarch64__
namespace neon {
extern const TranslationKernels translation_kernels;
}
namespace dotprod {
extern const TranslationKernels translation_kernels;
}
#else
namespace avx2 {
extern const TranslationKernels translation_kernels;
}
namespace avx512 {
extern const TranslationKernels translation_kernels;
// The same with products of bytes by AMX; null where the processor, the system or the compiler has none.
const TranslationKernels* amx_translation_kernels();
}  // namespace avx512
#endif

}  // namespace reluformer
