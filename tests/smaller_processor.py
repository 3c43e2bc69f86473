"""The tests that depend on instructions, on a processor that has AVX2 and nothing newer: `make test-avx2` emulates one.

What runs here is what a newer processor computes in another way: 8-bit products of onnxruntime, which saturate without
VNNI; attention by the compiled loop for AVX2, which widens bfloat16 to float32, since torch computes its products in
software; compiled translation.
"""

import sys

import pytest
import torch

from reluformer.modeling_reluformer.compiled.library import library

ATTENTION = "tests/modeling_reluformer/fused/test_paths.py::test"
TRANSLATION = "tests/translating/test_fast_translation.py::test"
TESTS = (
    "tests/export/test_export.py::test_the_command_with_int8_weights",
    "tests/export/test_export.py::test_the_graphs_that_come_with_the_package_are_of_its_weights",
    f"{ATTENTION}_every_width[avx2-64]",
    f"{ATTENTION}_half_precision_errs_no_more_than_the_plain_computation[torch.bfloat16-plain]",
    f"{ATTENTION}_half_precision_errs_no_more_than_the_plain_computation[torch.bfloat16-blocks]",
    f"{ATTENTION}_half_precision_errs_no_more_than_the_plain_computation[torch.bfloat16-avx2]",
    f"{TRANSLATION}_the_tokens_are_those_of_generate[1-relu-Search(num_beams=4, max_new_tokens=12, "
    "length_penalty=1.0)]",
    f"{TRANSLATION}_int8_stays_close",
    f"{TRANSLATION}_the_bits_are_those_of_every_instruction_set_batch_and_number_of_threads[int8-reluformer]",
)


def main() -> int:
    operators = library(large=True)  # None without a compiler, and then the tests of the compiled loops are skipped
    seen = torch.backends.cpu.get_cpu_capability(), ["avx2"] if operators is None else operators.instruction_sets()
    if seen != ("AVX2", ["avx2"]):
        print(f"torch and the compiled loops see {seen}, not a processor with AVX2 alone: run `make test-avx2`")
        return 1
    # Emulated, an export takes a minute where nothing else computes. Nothing is asserted in what was imported above.
    return pytest.main(["-rs", "--timeout=3600", "-W", "ignore::pytest.PytestAssertRewriteWarning", *TESTS])


if __name__ == "__main__":
    sys.exit(main())
