"""What ARM computes, checked with nothing but torch: attention and sparse networks by float64, translation by the bits
of x86.

`python -m tests.arm_processor` writes the file and starts this under an emulator; see there. There is no package here,
and no
pytest: the torch of the emulated machine is older than the package's lower bound, and only the library needs it.
"""

import sys
import time
import traceback

import torch

ACTIVATIONS = {
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x) ** 2,
    "sigmoid": torch.sigmoid,
    "gelu": torch.nn.functional.gelu,
    "softplus": torch.nn.functional.softplus,
}
OPTIONS = (None, None, None, None, None, None)  # row_scale, mask, cu_seqlens of both, offset, seed


def random_translator(compute: str, seed: int) -> list[torch.Tensor]:
    """The tensors of a `TranslationModel` with one layer on each side, of widths that are no round numbers."""
    draw = torch.Generator().manual_seed(seed)
    width, inner, words, empty = 48, 72, 101, torch.empty(0)

    def floats(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    def linear(outputs: int, inputs: int) -> list[torch.Tensor]:
        weight, bias = floats(outputs, inputs) / inputs**0.5, floats(outputs) / 8
        if compute == "float32":
            return [weight, bias, empty]
        scale = weight.abs().amax(1) / 127
        return [(weight / scale[:, None]).round().to(torch.int8), bias, scale]

    def norms(count: int) -> list[torch.Tensor]:
        return [part for _ in range(count) for part in (1 + floats(width) / 8, floats(width) / 8)]

    def layer(decodes: bool) -> list[torch.Tensor]:
        parts = linear(3 * width, width) + linear(width, width)
        if decodes:
            parts += linear(width, width) + linear(2 * width, width) + linear(width, width)
        parts += linear(inner, width) + linear(width, inner)
        norm = [*norms(1), *(norms(1) if decodes else []), *norms(1)]
        factors = [1 + floats(3).abs()] + ([1 + floats(3).abs()] if decodes else [])
        return parts + norm + factors

    tables = [floats(words, width), floats(words, width), floats(64, width), 1 / (1 + torch.arange(65)).float().sqrt()]
    return tables + linear(words, width) + layer(False) + layer(True)


def translate(tensors: list[torch.Tensor], activation: int, seed: int) -> list[torch.Tensor]:
    """States of the encoder, and logits and continuations of three steps with two beams."""
    operators, classes = torch.ops.reluformer_cpu, torch.classes.reluformer_cpu
    draw = torch.Generator().manual_seed(seed)
    lengths, beams = [1, 7, 21], 2
    model = classes.TranslationModel(tensors, 1, 3, 3, activation, 48**0.5)
    states = model.encode(torch.randint(101, (sum(lengths),), generator=draw), lengths)
    state = classes.TranslationState(states, lengths, 5, beams, 3)
    seen, scores = list(states), torch.zeros(len(lengths) * beams)
    for step in range(3):
        tokens = torch.randint(101, (len(lengths) * beams,), generator=draw)
        parents = (
            None if step == 0 else torch.arange(len(lengths)).repeat_interleave(2) * beams + torch.tensor([1, 0] * 3)
        )
        logits = model.step(state, tokens, parents)
        found, places = operators.continuations(logits, scores, beams, 2 * beams)
        seen += [logits, found, places]
    return seen


def translations() -> list[tuple]:
    """Models, and what they compute here. A file carries both: the same seed draws other numbers on another
    processor."""
    cases = []
    for compute in ("float32", "int8"):
        for activation in (0, 1, 2):
            tensors = random_translator(compute, 11 + activation)
            cases.append((f"{compute} {activation}", tensors, activation, translate(tensors, activation, 5)))
    return cases


def check_translation(cases: list[tuple]) -> None:
    for name, tensors, activation, expected in cases:
        for number, (seen, wanted) in enumerate(zip(translate(tensors, activation, 5), expected, strict=True)):
            assert torch.equal(seen, wanted), f"{name}, result {number}: {(seen - wanted).abs().max()} from x86"


def check_attention(dtype: torch.dtype) -> None:
    """Outputs, S, T and gradients, with few queries and with many, causal, in a window and not, beside float64."""
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for name, h in ACTIVATIONS.items():
        sizes = (
            (3, 45, 24, False, None),
            (70, 70, 40, True, None),
            (130, 130, 40, True, 9),
            (130, 300, 33, False, None),
        )
        for queries, keys, dims, causal, window in sizes:
            parts = [torch.randn(1, 2, n, dims).to(dtype).requires_grad_() for n in (queries, keys, keys)]
            scale, gain = dims**-0.5, torch.randn(1, 2, queries, dims).to(dtype)
            options = name, scale, causal, 0, window, 0.0, "sum+entropy"
            result = torch.ops.reluformer_cpu.attention(*parts, *OPTIONS, *options)
            wide = [part.detach().double().requires_grad_() for part in parts]
            weights = h(wide[0] @ wide[1].mT * scale)
            if causal:
                seen = torch.ones(queries, keys, dtype=torch.float64).tril()
                weights = weights * (seen if window is None else seen.triu(1 - window))
            entropy = torch.where(weights > 0, weights * weights.clamp_min(1e-300).log(), 0.0)
            expected = [weights @ wide[2], weights.sum(3), (entropy if name != "gelu" else weights * 0).sum(3)]
            gradients = torch.autograd.grad([result[0]], parts, [gain])
            wanted = torch.autograd.grad([expected[0]], wide, [gain.double()])
            compared = [*zip(result, expected, strict=True), *zip(gradients, wanted, strict=True)]
            for number, (computed, correct) in enumerate(compared):
                if name == "gelu" and number == 2:
                    continue  # there is no logarithm of negative weights
                error = (computed.double() - correct).abs().max() / correct.abs().max()
                assert error < tolerance, f"{name}, {queries} × {keys} × {dims}, result {number}: error {error:.1e}"


def check_sparse(kind: torch.dtype) -> None:
    dtype = torch.float32 if kind == torch.int8 else kind
    for rows, dims, neurons in ((1, 64, 96), (5, 75, 131)):
        x, bias = torch.randn(rows, dims).to(dtype), torch.randn(neurons)
        weights = [torch.randn(neurons, dims) / dims**0.5, torch.randn(neurons, dims) / neurons**0.5]
        scales = [None, None]
        if kind == torch.int8:
            scales = [weight.abs().amax(1) / 127 for weight in weights]
            stored = [(weight / scale[:, None]).round().to(kind) for weight, scale in zip(weights, scales, strict=True)]
            wide = [part.double() * scale[:, None] for part, scale in zip(stored, scales, strict=True)]
            step = x.abs().amax(1, keepdim=True) / 127
            inputs = (x / step).round().double() * step
        else:
            stored = [weight.to(kind) for weight in weights]
            wide, inputs = [part.double() for part in stored], x.double()
        seen = torch.ops.reluformer_cpu.sparse_ffn(
            x, stored[0], scales[0], bias, None, None, None, stored[1], scales[1], None, "relu", "identity", None, False
        )
        correct = torch.relu(inputs @ wide[0].T + bias.double()) @ wide[1]
        error = (seen.double() - correct).abs().max() / correct.abs().max()
        assert error < (1e-5 if dtype == torch.float32 else 1e-2), (
            f"{kind}, {rows} × {dims} × {neurons}: error {error:.1e}"
        )


def main(library: str, file: str) -> int:
    torch.ops.load_library(library)
    operators, expected, failures = torch.ops.reluformer_cpu, torch.load(file), 0
    sets = operators.instruction_sets()
    print(f"torch {torch.__version__}, instruction sets {sets}", flush=True)
    assert sets == ["dotprod", "neon"], sets
    checks = [("attention", check_attention, kind) for kind in (torch.float32, torch.bfloat16)]
    checks = [(None, *check) for check in checks]  # one code for all sets
    for name in sets:
        checks += [(name, "sparse", check_sparse, kind) for kind in (torch.float32, torch.bfloat16, torch.int8)]
        checks += [(name, "translation", check_translation, expected)]
    for name, what, check, argument in checks:
        operators.choose_instruction_set(name or sets[0])
        label = f"{what} {'' if isinstance(argument, list) else argument} {name or ''}"
        begin = time.monotonic()
        try:
            check(argument)
        except Exception:  # the others are of interest as well; this one counts
            traceback.print_exc()
            failures += 1
            print(f"FAILED {label}", flush=True)
        else:
            print(f"passed {label}, {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{len(checks) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
