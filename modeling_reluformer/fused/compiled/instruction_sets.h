// Kernels for several instruction sets, and which of those that the processor has computes.
#pragma once

#include <torch/library.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace reluformer {

template <typename Kernels>
struct InstructionSets {
  std::vector<std::string> names;  // of those that this processor has, the fastest first
  std::vector<const Kernels*> kernels;
  const Kernels* chosen;  // null: there are none for this processor

  // amx: null where there is none
  InstructionSets(const Kernels* avx512, const Kernels* avx2, const Kernels* amx = nullptr) {
    add("amx", amx, amx != nullptr);
    add("avx512", avx512,
        __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"));
    add("avx2", avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    chosen = kernels.empty() ? nullptr : kernels.front();
  }

  // For tests, which compare all that a processor has.
  void choose(std::string_view name) {
    const auto found = std::find(names.begin(), names.end(), name);
    TORCH_CHECK_VALUE(found != names.end(), "this processor has no instruction set '", name, "'.");
    chosen = kernels[found - names.begin()];
  }

 private:
  void add(const char* name, const Kernels* set, bool is_served) {
    if (is_served) {
      names.emplace_back(name);
      kernels.push_back(set);
    }
  }
};

}  // namespace reluformer
