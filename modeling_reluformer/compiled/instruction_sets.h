// What is compiled once for each instruction set: the loops of attention, of sparse networks and of translation.
#pragma once

#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "attention/kernels.h"
#include "sparse_ffn/sparse_kernels.h"
#include "translation/translation_kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace reluformer {

struct InstructionSet {
  std::string name;
  const KernelSet* attention;
  const SparseKernelSet* sparse;
  const TranslationKernels* translation;
};

// Those that this processor has, the fastest first.
inline const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> available;
#ifdef __aarch64__
#ifdef __linux__
    const bool has_dotprod = getauxval(AT_HWCAP) & (1ul << 20);  // HWCAP_ASIMDDP, which old headers do not name
#else
    const bool has_dotprod = true;  // of Apple's, all do
#endif
    if (has_dotprod) {
      available.push_back({"dotprod", &neon::kernels, &dotprod::sparse_kernels, &dotprod::translation_kernels});
    }
    available.push_back({"neon", &neon::kernels, &neon::sparse_kernels, &neon::translation_kernels});
#else
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni")) {
      if (const TranslationKernels* amx = avx512::amx_translation_kernels()) {
        available.push_back({"amx", &avx512::kernels, &avx512::sparse_kernels, amx});
      }
      available.push_back({"avx512", &avx512::kernels, &avx512::sparse_kernels, &avx512::translation_kernels});
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      available.push_back({"avx2", &avx2::kernels, &avx2::sparse_kernels, &avx2::translation_kernels});
    }
#endif
    return available;
  }();
  return sets;
}

// The one that computes; null where this processor has none.
inline const InstructionSet*& chosen_set() {
  static const InstructionSet* set = instruction_sets().empty() ? nullptr : &instruction_sets().front();
  return set;
}

// The index of a name in a list; Python asks for no other name.
inline int64_t number_of(std::initializer_list<std::string_view> names, std::string_view name) {
  const auto match = std::find(names.begin(), names.end(), name);
  TORCH_CHECK_VALUE(match != names.end(), "the compiled library does not know '", name, "'.");
  return match - names.begin();
}

}  // namespace reluformer
