"""Attention alone: ReLU attention beside softmax, sparsemax, entmax15 and ReLA, forward, and forward with backward.

Ours are `relu_attention` with each of its statistics. Rivals: softmax in `scaled_dot_product_attention`, and with all their
weights in memory (eager): softmax, ReLU, sparsemax, entmax15 and ReLA (ReLU without scale, then its gated norm over the
merged heads). Queries, keys, values and the gradient of the output are independent normal numbers, (batch, heads, length,
head_dim), contiguous; the row scale is ReLUFormer's, 1 / (gamma sqrt(n_i / 2)). Nothing is timed where ours differ from the
float64 reference.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import time_contenders
from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_reluformer import reference_attention
from reluformer.modeling_reluformer.layers_reluformer import GatedRMSNorm

# name of the contender → the statistics it returns
OURS = {"fused": "none", "fused+S": "sum", "fused+S+T": "sum+entropy"}
PLAIN, _, WITH_STATISTICS = OURS
SDPA, EAGER_RELU = "sdpa softmax", "eager relu"
SPARSE = ("sparsemax", "entmax15", "rela")
EAGER = ("eager softmax", EAGER_RELU, *SPARSE)
GAMMA, ENTROPY_MARGIN = 8.0, 0.7

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
SHORT_LENGTHS, SHORT_BATCHES, SHORT_HEAD_DIMS = (16, 32, 64, 128, 256), (1, 4, 64), (32, 64)
LONG_BATCHES = ((4, 512), (4, 1024), (8, 512))  # batch and length
# The eager rivals compute the hidden scores of causal attention, too; the sparse ones take longest of all.
LONGEST_CAUSAL, LONGEST_CAUSAL_EAGER, LONGEST_SPARSE = 2048, 1024, 1024
DTYPES = ("float32", "bfloat16")
HEADS, HEAD_DIM = 8, 64
SECONDS, SHORT_SECONDS, SLOWEST = 2.0, 0.6, 2.5  # of a cell; of one call of an eager rival

# A relative error may be this large, or twice that of the plain computation in the same precision.
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 5e-3}
CHECKED_LENGTHS = (17, 65, 150, 384, 1025)

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
Step = Callable[[], Any]


@dataclass(frozen=True)
class AttentionCase:
    """One cell: `backward` is whether forward and backward are timed together, or forward alone."""

    batch: int
    heads: int
    length: int
    head_dim: int
    dtype: torch.dtype
    causal: bool
    backward: bool
    device: str = "cpu"

    def as_record(self) -> Names:
        """For the result file, all plain values."""
        names = asdict(self) | {"dtype": str(self.dtype).removeprefix("torch.")}
        names["pass"] = "forward+backward" if names.pop("backward") else "forward"
        return names


@dataclass(frozen=True)
class AttentionInputs:
    """query, key, value, output_gradient: (batch, heads, length, head_dim). row_scale: (batch, 1, length), float32.

    visible_keys: n_i, (batch, length). mask: boolean (1, 1, length, length) where causal, for the eager rivals; else None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output_gradient: Tensor
    row_scale: Tensor
    visible_keys: Tensor
    mask: Tensor | None

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value


def random_inputs(case: AttentionCase, seed: int, *, with_mask: bool = True) -> AttentionInputs:
    """The same numbers for the same seed and shape; the mask is left out where `with_mask` is False."""
    generator = torch.Generator(device=case.device).manual_seed(seed)
    shape = (case.batch, case.heads, case.length, case.head_dim)
    query, key, value, gradient = (
        torch.randn(shape, generator=generator, device=case.device).to(case.dtype) for _ in range(4)
    )
    for tensor in (query, key, value):
        tensor.requires_grad_(case.backward)
    count = torch.full((case.length,), float(case.length), device=case.device)
    if case.causal:
        count = torch.arange(1.0, case.length + 1, device=case.device)
    visible_keys = count.expand(case.batch, -1)
    mask = None
    if case.causal and with_mask:
        mask = torch.ones(1, 1, case.length, case.length, dtype=torch.bool, device=case.device).tril_()
    row_scale = torch.rsqrt(visible_keys / 2).unsqueeze(1) / GAMMA
    return AttentionInputs(query, key, value, gradient, row_scale, visible_keys, mask)


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


def eager(inputs: AttentionInputs, activation: str, statistics: str = "none") -> Forward:
    """The reference with all its weights; ReLU with ReLUFormer's row scale, the others without."""

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        scale = inputs.row_scale.to(torch.promote_types(query.dtype, torch.float32)) if activation == "relu" else None
        result = reference_attention(
            query, key, value, activation=activation, mask=inputs.mask, row_scale=scale, statistics=statistics
        )
        return tuple(part for part in (result.output, result.row_sum, result.row_sum_log) if part is not None)

    return forward


def rela(inputs: AttentionInputs, norm: GatedRMSNorm) -> Forward:
    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        output = reference_attention(query, key, value, activation="relu", mask=inputs.mask).output
        return (norm(output.transpose(1, 2).flatten(2)),)

    return forward


def timed_step(case: AttentionCase, inputs: AttentionInputs, name: str) -> Step:
    """What is called in the rounds for one of OURS, SDPA and EAGER."""
    leaves: tuple[Tensor, ...] = inputs.leaves
    gradients: tuple[Tensor, ...] = (inputs.output_gradient,)
    if name in OURS:
        forward = fused(case, inputs, OURS[name])
        gradients += statistics_gradients(case, inputs, OURS[name]) if case.backward else ()
    elif name == SDPA:
        forward = sdpa(case)
    elif name == "rela":
        norm = GatedRMSNorm(case.heads * case.head_dim).to(case.device, case.dtype)
        forward = rela(inputs, norm)
        leaves += tuple(norm.parameters())
        gradients = (inputs.output_gradient.transpose(1, 2).flatten(2),)
    else:
        forward = eager(inputs, name.removeprefix("eager "))
    return training_step(forward, leaves, gradients) if case.backward else inference_step(forward, inputs.leaves)


def inference_step(forward: Forward, inputs: tuple[Tensor, ...]) -> Step:
    return torch.no_grad()(lambda: forward(*inputs))


def training_step(forward: Forward, leaves: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> Step:
    """Forward over the first three leaves and backward to all of them."""
    return lambda: torch.autograd.grad(forward(*leaves[:3]), leaves, gradients)


def statistics_gradients(case: AttentionCase, inputs: AttentionInputs, statistics: str) -> tuple[Tensor, ...]:
    """Gradients of S, or of S and T, as the regulariser sends them: those of Eq. 7, or of its |log S| alone."""
    if statistics == "none":
        return ()
    with torch.no_grad():
        _, *sums = fused(case, inputs, statistics)(*inputs.leaves)
    sums = [tensor.detach().requires_grad_() for tensor in sums]
    return torch.autograd.grad(penalty(inputs.visible_keys, *sums), sums)


def penalty(visible_keys: Tensor, row_sum: Tensor, row_sum_log: Tensor | None = None) -> Tensor:
    """Eq. 7: the mean over heads and rows of |log S|, and of the entropy above its margin where T is given; a dead row has none.

    Args:
        visible_keys: (batch, length). row_sum, row_sum_log: S and T, (batch, heads, length).
    """
    alive = row_sum > 0
    safe = row_sum.where(alive, torch.ones_like(row_sum))
    rows = safe.log().abs()
    if row_sum_log is not None:
        rows = rows + (safe.log() - row_sum_log / safe - ENTROPY_MARGIN * visible_keys.log().unsqueeze(1)).relu()
    return rows.where(alive, torch.zeros_like(rows)).mean()


def run_gate(
    dtypes: tuple[torch.dtype, ...], *, seed: int, head_dim: int, lengths: tuple[int, ...], device: str = "cpu"
) -> list[Names]:
    """Compares outputs, S and T and the gradients of ours with float64 at every dtype and length, causal and not.

    Returns:
        For each check the case, `contender`, `errors` by tensor (root mean square over that of the exact one), and `passed`.
    """
    records = []
    for dtype, length, causal in itertools.product(dtypes, lengths, (False, True)):
        case = AttentionCase(2, 2, length, head_dim, dtype, causal, True, device)
        inputs = random_inputs(case, seed)
        for name, statistics in OURS.items():
            plain = eager(inputs, "relu", statistics)
            exact = _tensors(plain, inputs, seed, torch.float64)
            fast = _tensors(fused(case, inputs, statistics), inputs, seed, dtype)
            near = _tensors(plain, inputs, seed, dtype)
            errors = {part: (_error(fast[part], exact[part]), _error(near[part], exact[part])) for part in exact}
            passed = all(error <= max(BOUNDS[dtype], 2 * of_plain) for error, of_plain in errors.values())
            errors = {part: {"relative_rms": e, "plain_relative_rms": p} for part, (e, p) in errors.items()}
            records.append({**case.as_record(), "contender": name, "errors": errors, "passed": passed})
    return records


def failures(records: list[Names]) -> list[str]:
    """One line for each check that was not passed."""
    return [
        f"{record['contender']}, {record['dtype']}, d={record['head_dim']}, n={record['length']}, causal={record['causal']}: "
        "relative error " + ", ".join(f"{name} {error['relative_rms']:.1e}" for name, error in record["errors"].items())
        for record in records
        if not record["passed"]
    ]


def _tensors(forward: Forward, inputs: AttentionInputs, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs and gradients by name, computed in this dtype, as float64."""
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs.leaves]
    outputs = forward(*leaves)
    generator = torch.Generator(device=leaves[0].device).manual_seed(seed + 1)
    gradients = [
        torch.randn(output.shape, generator=generator, device=output.device).to(output.dtype) for output in outputs
    ]
    results = (*outputs, *torch.autograd.grad(outputs, leaves, gradients))
    names = (*("output", "S", "T")[: len(outputs)], "query gradient", "key gradient", "value gradient")
    return {name: tensor.detach().double() for name, tensor in zip(names, results, strict=True)}


def _error(values: Tensor, expected: Tensor) -> float:
    return float((values - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def check(options: argparse.Namespace) -> list[Names]:
    """The checks of `run_gate` for both sizes of heads.

    Raises:
        RuntimeError: one was not passed.
    """
    lengths = CHECKED_LENGTHS[1:2] if options.quick else CHECKED_LENGTHS
    dtypes = tuple(getattr(torch, dtype) for dtype in DTYPES)
    gate = [
        record
        for head_dim in SHORT_HEAD_DIMS
        for record in run_gate(dtypes, seed=options.seed, head_dim=head_dim, lengths=lengths)
    ]
    if failures(gate):
        raise RuntimeError("attention: ours are wrong, nothing was timed: " + "\n".join(failures(gate)))
    return gate


def cells(quick: bool) -> Iterator[Names]:
    """Every cell once: one sequence with all rivals; short lengths and other batches; a length of 1, the cost of a call."""
    shapes = [(1, HEAD_DIM, length) for length in (LENGTHS[:1] if quick else LENGTHS)]
    short = ((4,), (32,), (16,)) if quick else (SHORT_BATCHES, SHORT_HEAD_DIMS, SHORT_LENGTHS)
    shapes += itertools.product(*short)
    shapes += [] if quick else [(batch, HEAD_DIM, length) for batch, length in LONG_BATCHES]
    for (batch, head_dim, length), *kind in itertools.product(
        dict.fromkeys(shapes), DTYPES, (False,) if quick else (False, True), (False, True)
    ):
        if not kind[1] or length <= LONGEST_CAUSAL:
            yield _names(batch, head_dim, length, *kind)
    for dtype, backward in itertools.product(DTYPES, (False, True)):
        yield _names(1, HEAD_DIM, 1, dtype, False, backward)


def _names(batch: int, head_dim: int, length: int, dtype: str, causal: bool, backward: bool) -> Names:
    return AttentionCase(batch, HEADS, length, head_dim, getattr(torch, dtype), causal, backward).as_record()


def contenders_of(cell: Names) -> tuple[str, ...]:
    """All rivals where one sequence is timed, as far as they are not too slow to be worth it; few in the other cells."""
    length = cell["length"]
    if cell["batch"] > 1 or cell["head_dim"] != HEAD_DIM or length < LENGTHS[0]:
        return (PLAIN, WITH_STATISTICS, SDPA, *((EAGER_RELU,) if length <= SHORT_LENGTHS[-1] else ()))
    few = length > (LONGEST_CAUSAL_EAGER if cell["causal"] else LENGTHS[-1])
    return (*OURS, SDPA, *(() if few else EAGER[:2] if length > LONGEST_SPARSE else EAGER))


def measure(cell: Names, options: argparse.Namespace, earlier: list[Names]) -> Names:
    names = {name: cell[name] for name in ("batch", "heads", "length", "head_dim", "causal")}
    case = AttentionCase(**names, dtype=getattr(torch, cell["dtype"]), backward=cell["pass"] != "forward")
    contenders = contenders_of(cell)
    inputs = random_inputs(case, options.seed, with_mask=any(name in EAGER for name in contenders))
    steps = {name: timed_step(case, inputs, name) for name in contenders}
    short = cell["length"] <= SHORT_LENGTHS[-1] and SPARSE[0] not in contenders
    given = {"budget": SHORT_SECONDS, "round_seconds": 0.01} if short else {"budget": SECONDS}
    timing = time_contenders(steps, slowest=SLOWEST, always=(*OURS, SDPA), **effort(options, **given))
    rivals = {name: [rival for rival in contenders if rival != name] for name in OURS}
    return timing.record(rivals)


BENCHMARK = Benchmark(
    "attention",
    cells,
    measure,
    {
        "budget": SECONDS,
        "short_budget": SHORT_SECONDS,
        "slowest": SLOWEST,
        "layout": "(batch, heads, length, head_dim), contiguous",
    },
    check,
)
