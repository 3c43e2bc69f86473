"""Attention alone: ReLU attention beside softmax, sparsemax and entmax15, forward, and forward with backward.

Ours are `relu_attention` with each of its statistics. Rivals: softmax in `scaled_dot_product_attention`, and with all
their weights in memory (eager): softmax, ReLU, sparsemax and entmax15. Queries, keys, values and the gradient of the
output are independent normal numbers, (batch, heads, length, head_dim), contiguous; the row scale is 1 / (gamma
sqrt(n_i / 2)). That ours are right is what the tests show.

FlexAttention has only softmax, and no backward pass on a CPU. The score log(ReLU + 1) makes ReLU + 1 of it, over a sum
that `flex_relu` undoes by a further key, since `return_lse` is not there on a CPU either.

`attention-avx2` times ours and softmax with everything held to AVX2, beside torch's own product of two matrices of
2,048 × 2,048 in float32 in the same rounds: how much of the processor each of them uses.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from benchmarks.avx2 import AVX2_SETTINGS, held_to_avx2
from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import Step, time_contenders
from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_reluformer import reference_attention
from reluformer.modeling_reluformer.loss_reluformer import DEFAULT_ENTROPY_MARGIN, row_entropy, row_penalty

# name of the contender → the statistics it returns
OURS = {"fused": "none", "fused+S": "sum", "fused+S+T": "sum+entropy"}
PLAIN, _, WITH_STATISTICS = OURS
SDPA, EAGER_RELU = "sdpa softmax", "eager relu"
SPARSE = ("sparsemax", "entmax15")
EAGER = ("eager softmax", EAGER_RELU, *SPARSE)
FLEX_RELU, FLEX_LENGTHS = "FlexAttention ReLU", (512, 1024, 2048)  # each is compiled by itself
FLEX_CELLS = {"dtype": "float32", "causal": False, "pass": "forward"}
GAMMA = 8.0

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
SHORT_LENGTHS, SHORT_BATCHES, SHORT_HEAD_DIMS = (16, 32, 64, 128, 256), (1, 4, 64), (32, 64)
LONG_BATCHES = ((4, 512), (4, 1024), (8, 512))  # batch and length
# The eager rivals compute the hidden scores of causal attention, too; the sparse ones take longest of all.
LONGEST_CAUSAL, LONGEST_CAUSAL_EAGER, LONGEST_SPARSE = 2048, 1024, 1024
DTYPES, PASSES = ("float32", "bfloat16"), ("forward", "forward+backward")
HEADS, HEAD_DIM = 8, 64
SECONDS, SHORT_SECONDS = 2.0, 0.6  # of a cell
# With AVX2 alone; softmax in bfloat16 with its backward pass takes many times as long there.
AVX2_LENGTHS, LONGEST_SLOW, PRODUCT, PRODUCT_SIZE = (256, 512, 1024, 2048, 4096), 1024, "torch product", 2048

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class AttentionCase:
    """Sizes of a cell. `backward`: forward and backward are timed together, or forward alone."""

    batch: int
    heads: int
    length: int
    head_dim: int
    dtype: torch.dtype
    causal: bool
    backward: bool
    device: str = "cpu"


@dataclass(frozen=True)
class AttentionInputs:
    """leaves: query, key, value; they and output_gradient are (batch, heads, length, head_dim).

    visible_keys: n_i, (batch, length). row_scale: (batch, 1, length), float32. mask: boolean (1, 1, length, length)
    where causal, for the eager rivals; else None.
    """

    leaves: tuple[Tensor, Tensor, Tensor]
    output_gradient: Tensor
    visible_keys: Tensor
    row_scale: Tensor
    mask: Tensor | None


def random_inputs(case: AttentionCase, seed: int, *, with_mask: bool = True) -> AttentionInputs:
    """The same numbers for the same seed and shape; the mask is left out where `with_mask` is False."""
    generator = torch.Generator(device=case.device).manual_seed(seed)
    shape = (case.batch, case.heads, case.length, case.head_dim)
    *leaves, gradient = (torch.randn(shape, generator=generator, device=case.device).to(case.dtype) for _ in range(4))
    for tensor in leaves:
        tensor.requires_grad_(case.backward)
    places = torch.arange(1.0, case.length + 1, device=case.device)
    visible_keys = (places if case.causal else torch.full_like(places, case.length)).expand(case.batch, -1)
    mask = None
    if case.causal and with_mask:
        mask = torch.ones(1, 1, case.length, case.length, dtype=torch.bool, device=case.device).tril_()
    row_scale = torch.rsqrt(visible_keys / 2).unsqueeze(1) / GAMMA
    return AttentionInputs(tuple(leaves), gradient, visible_keys, row_scale, mask)


def fused(case: AttentionCase, inputs: AttentionInputs, statistics: str, dropout_p: float = 0.0) -> Forward:
    """`relu_attention`; returns the output, and S and T if asked for."""
    options = {"row_scale": inputs.row_scale, "causal": case.causal, "statistics": statistics, "dropout_p": dropout_p}

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        result = relu_attention(query, key, value, **options)
        return (result,) if statistics == "none" else tuple(result)

    return forward


def sdpa(case: AttentionCase, dropout_p: float = 0.0) -> Forward:
    options = {"is_causal": case.causal, "dropout_p": dropout_p}
    return lambda query, key, value: (nn.functional.scaled_dot_product_attention(query, key, value, **options),)


def eager(inputs: AttentionInputs, activation: str) -> Forward:
    """The reference with all its weights; ReLU with ReLUFormer's row scale, the others without."""

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        scale = inputs.row_scale if activation == "relu" else None
        result = reference_attention(query, key, value, activation=activation, mask=inputs.mask, row_scale=scale)
        return (result.output,)

    return forward


def flex(case: AttentionCase, score: Callable[..., Tensor] | None, torch_compile: bool = True) -> Forward:
    """FlexAttention; score: of a score and its indices, None for softmax."""
    compute, mask = flex_attention.flex_attention, None
    compute = torch.compile(compute, dynamic=False) if torch_compile else compute
    if case.causal:
        sizes = (None, None, case.length, case.length)
        mask = flex_attention.create_block_mask(lambda b, h, query, key: query >= key, *sizes, device=case.device)
    return lambda query, key, value: (compute(query, key, value, score_mod=score, block_mask=mask),)


def log_relu(score: Tensor, *indices: Tensor) -> Tensor:
    return torch.log(torch.relu(score) + 1.0)


def flex_relu(case: AttentionCase, inputs: AttentionInputs, torch_compile: bool = True) -> Forward:
    """ReLU attention, not causal. The further key has score 0, and value 1 in a feature of its own: there the mean is 1
    over the sum of all ReLU + 1. The mean over this, less the sum of v, is the sum of ReLU · v."""

    def score(value: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(key == case.length, 0.0, log_relu(value))

    attend, pad = flex(case, score, torch_compile), nn.functional.pad

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        values = pad(value, (0, 1, 0, 1))
        values[..., -1, -1] = 1.0
        (mean,) = attend(query, pad(key, (0, 0, 0, 1)), values)
        sums = mean[..., :-1] / mean[..., -1:] - value.sum(dim=-2, keepdim=True)
        return (sums * inputs.row_scale.unsqueeze(-1),)

    return forward


def timed_step(case: AttentionCase, inputs: AttentionInputs, name: str) -> Step:
    """What is called in the rounds for one of OURS, SDPA, FLEX_RELU and EAGER."""
    gradients = (inputs.output_gradient,)
    if name in OURS:
        forward = fused(case, inputs, OURS[name])
        gradients += statistics_gradients(case, inputs, OURS[name])
    elif name == FLEX_RELU:
        forward = flex_relu(case, inputs)
    else:
        forward = sdpa(case) if name == SDPA else eager(inputs, name.removeprefix("eager "))
    return training_step(forward, inputs.leaves, gradients) if case.backward else inference_step(forward, inputs.leaves)


def inference_step(forward: Forward, inputs: tuple[Tensor, ...]) -> Step:
    return torch.no_grad()(lambda: forward(*inputs))


def training_step(forward: Forward, leaves: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> Step:
    return lambda: torch.autograd.grad(forward(*leaves), leaves, gradients)


def statistics_gradients(case: AttentionCase, inputs: AttentionInputs, statistics: str) -> tuple[Tensor, ...]:
    """Gradients of S, or of S and T, as the regulariser sends them: of Eq. 7 with both, of |log S| alone without T.

    None without backward.
    """
    if statistics == "none" or not case.backward:
        return ()
    with torch.no_grad():
        _, *sums = fused(case, inputs, statistics)(*inputs.leaves)
    sums = [tensor.detach().requires_grad_() for tensor in sums]
    entropy = row_entropy(*sums) if len(sums) == 2 else torch.zeros_like(sums[0])
    penalty = row_penalty(sums[0], entropy, inputs.visible_keys.unsqueeze(1), DEFAULT_ENTROPY_MARGIN)
    return torch.autograd.grad(penalty.mean(), sums)


def cells(quick: bool) -> Iterator[Names]:
    """Every cell once: one sequence with all rivals; short lengths and other batches; a length of 1, the cost of a
    call."""
    shapes = [(1, HEAD_DIM, length) for length in (LENGTHS[:1] if quick else LENGTHS)]
    shapes += itertools.product(*(((4,), (32,), (16,)) if quick else (SHORT_BATCHES, SHORT_HEAD_DIMS, SHORT_LENGTHS)))
    shapes += [] if quick else [(batch, HEAD_DIM, length) for batch, length in LONG_BATCHES]
    shapes.append((1, HEAD_DIM, 1))
    for (batch, head_dim, length), dtype, causal, which in itertools.product(
        dict.fromkeys(shapes), DTYPES, (False, True), PASSES
    ):
        if not causal or (1 < length <= LONGEST_CAUSAL and not quick):
            sizes = {"batch": batch, "heads": HEADS, "length": length, "head_dim": head_dim}
            yield {**sizes, "dtype": dtype, "causal": causal, "pass": which}


def contenders_of(cell: Names) -> tuple[str, ...]:
    """All rivals where one sequence is timed, as far as they are not too slow to be worth it; few in the other
    cells."""
    length = cell["length"]
    if cell["batch"] > 1 or cell["head_dim"] != HEAD_DIM or length < LENGTHS[0]:
        return (PLAIN, WITH_STATISTICS, SDPA, *((EAGER_RELU,) if length <= SHORT_LENGTHS[-1] else ()))
    if cell["causal"] and length > LONGEST_CAUSAL_EAGER:
        return (*OURS, SDPA)
    by_flex = FLEX_CELLS.items() <= cell.items() and length in FLEX_LENGTHS
    return (*OURS, SDPA, *([FLEX_RELU] if by_flex else []), *(EAGER[:2] if length > LONGEST_SPARSE else EAGER))


def measure(cell: Names, options: argparse.Namespace) -> Names:
    """Milliseconds of a call, and the speedups of ours over all others."""
    names = {name: cell[name] for name in ("batch", "heads", "length", "head_dim", "causal")}
    case = AttentionCase(**names, dtype=getattr(torch, cell["dtype"]), backward=cell["pass"] != PASSES[0])
    contenders = contenders_of(cell)
    inputs = random_inputs(case, options.seed, with_mask=any(name in EAGER for name in contenders))
    steps = {name: timed_step(case, inputs, name) for name in contenders}
    short = cell["length"] <= SHORT_LENGTHS[-1] and SPARSE[0] not in contenders
    limits = {"budget": SHORT_SECONDS, "round_seconds": 0.01} if short else {"budget": SECONDS}
    timing = time_contenders(steps, **effort(options, **limits))
    record = timing.record({name: [rival for rival in contenders if rival != name] for name in OURS})
    if FLEX_RELU in contenders:
        record["errors"] = {name: error(inputs, steps[name]) for name in (PLAIN, FLEX_RELU)}
    return record


def error(inputs: AttentionInputs, step: Step) -> float:
    """Of a forward pass without causality, against the reference in float64: its norm over that of the reference."""
    query, key, value, scale = (tensor.double() for tensor in (*inputs.leaves, inputs.row_scale))
    exact = reference_attention(query, key, value, activation="relu", row_scale=scale).output
    return float((step()[0] - exact).norm() / exact.norm())


def avx2_cells(quick: bool) -> Iterator[Names]:
    """One sequence, with one and with two threads; and one length with heads of 128."""
    shapes = [(HEAD_DIM, length) for length in (AVX2_LENGTHS[:1] if quick else AVX2_LENGTHS)]
    shapes += [] if quick else [(2 * HEAD_DIM, 1024)]
    for (head_dim, length), dtype, which, threads in itertools.product(shapes, DTYPES, PASSES, (1, 2)):
        if (dtype, which) != (DTYPES[1], PASSES[1]) or length <= LONGEST_SLOW:
            sizes = {"batch": 1, "heads": HEADS, "length": length, "head_dim": head_dim}
            yield {**sizes, "dtype": dtype, "causal": False, "pass": which, "threads": threads}


def measure_with_avx2(cell: Names, options: argparse.Namespace) -> Names:
    """Ours forward, and with S and T in training, beside softmax; `gflops` of each and of torch's product."""
    names = {name: cell[name] for name in ("batch", "heads", "length", "head_dim", "causal")}
    case = AttentionCase(**names, dtype=getattr(torch, cell["dtype"]), backward=cell["pass"] != PASSES[0])
    ours, products = (WITH_STATISTICS, 7) if case.backward else (PLAIN, 2)
    factors = torch.randn(3, PRODUCT_SIZE, PRODUCT_SIZE)
    with held_to_avx2("attention-avx2"):
        inputs = random_inputs(case, options.seed, with_mask=False)
        steps = {name: timed_step(case, inputs, name) for name in (ours, SDPA)}
        steps[PRODUCT] = lambda: torch.mm(factors[0], factors[1], out=factors[2])
        record = time_contenders(steps, **effort(options, budget=SECONDS)).record({ours: [SDPA, PRODUCT]})
    work = dict.fromkeys((ours, SDPA), 2.0 * products * case.heads * case.length**2 * case.head_dim)
    work[PRODUCT] = 2.0 * PRODUCT_SIZE**3
    record["gflops"] = {name: work[name] / values["median_ms"] / 1e6 for name, values in record["times"].items()}
    return record


SETTINGS = {"budget": SECONDS, "short_budget": SHORT_SECONDS, "layout": "(batch, heads, length, head_dim), contiguous"}
BENCHMARK = Benchmark("attention", cells, measure, SETTINGS)
AVX2_BENCHMARK = Benchmark("attention-avx2", avx2_cells, measure_with_avx2, {**SETTINGS, **AVX2_SETTINGS})
