"""Whole models that decode with networks that skip zeros: `generate` beside torch, the dense loop and int8. See sparse.py.

    python -m benchmarks.speed.sparse_models             about twelve minutes on two idle cores
    python -m benchmarks.speed.sparse_models --quick     seconds; its figures mean nothing

New weights; a bias before the activation makes the share of zeros, which a run counts. torch's int8 quantises every
`nn.Linear` of the model, ours the feed-forward networks alone; `both` is ours there and torch's for the others. Writes
`benchmarks/results/sparse-models-cpu.json`.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.end_to_end import trained_parameters
from benchmarks.speed.timing import time_contenders
from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM, use_sparse_ffn
from reluformer.modeling_reluformer.fused.compiled.library import sparse_library
from reluformer.modeling_reluformer.sparse_ffn.blocks import sparse_blocks
from reluformer.modeling_reluformer.sparse_ffn.forward import SparseFeedForward, SparseProjection
from reluformer.training.run.records import write_json

TORCH, DENSE, SPARSE, BOTH = "torch", "dense", "zeros", "both"
PROMPT, NEW_TOKENS = 8, 32
THREADS = (1, 2)
OURS, LLAMA, OPT = "ReLUFormer decoder, GLU", "Llama with ReLU, GLU", "OPT, MLP"


@dataclass(frozen=True)
class Shape:
    """sizes: fields of the configuration that `make` completes; FFNs have a bias, which makes the zeros."""

    make: Callable[..., PreTrainedConfig]
    model: type[PreTrainedModel]
    sizes: dict[str, int]


def _sizes(width: int, inner: int, inner_name: str = "intermediate_size") -> dict[str, int]:
    layers = {"num_hidden_layers": 4, "num_attention_heads": width // 64, "vocab_size": 4096}
    return {"hidden_size": width, inner_name: inner, **layers}


# The goals are about the first.
SHAPES = {
    OURS: Shape(
        partial(ReLUFormerDecoderConfig.from_preset, "llama_relu", ffn_bias=True),
        ReLUFormerForCausalLM,
        _sizes(512, 4096),
    ),
    LLAMA: Shape(partial(LlamaConfig, hidden_act="relu", mlp_bias=True), LlamaForCausalLM, _sizes(1024, 4096)),
    OPT: Shape(
        partial(OPTConfig, activation_function="relu", word_embed_proj_dim=1024),
        OPTForCausalLM,
        _sizes(1024, 4096, "ffn_dim"),
    ),
}
QUICK = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
# float32 and int8 of each, in this order
CONTENDERS = (
    *(f"{dtype} {name}" for dtype in ("float32", "int8") for name in (TORCH, DENSE, SPARSE)),
    f"int8 {BOTH}",
)


@dataclass(frozen=True)
class ModelCell:
    """shape: of SHAPES. zeros: per cent that are asked for. beams: rows of a step. threads: of torch."""

    shape: str
    zeros: int
    beams: int
    threads: int


def main(arguments: list[str] | None = None) -> int:
    options = benchmark_parser(__doc__, "sparse-models-cpu.json").parse_args(arguments)
    counts, record = begin_decoding(options)
    start = time.perf_counter()
    models = [
        measure_model(cell, options)
        for cell in tqdm(list(all_models(counts, options.quick)), desc="models", unit="cell")
    ]
    print(write_json(options.output, {**record, "seconds": time.perf_counter() - start, "models": models}))
    return 0


def begin_decoding(options: argparse.Namespace) -> tuple[tuple[int, ...], dict[str, Any]]:
    """What every benchmark of decoding with zeros begins with: the numbers of threads that are measured, and its record, of which
    `settings` tells these and what computes the loops."""
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch.ao")  # torch's int8
    record, operators = begin(options), sparse_library(large=True)
    counts = THREADS if options.threads is None else (options.threads,)
    settings = {
        "threads": " and ".join(map(str, counts)),
        "instruction_set": "none: gather in torch" if operators is None else operators.ffn_instruction_sets()[0],
    }
    return counts, {**record, "settings": settings}


def all_models(counts: tuple[int, ...] = THREADS, quick: bool = False) -> Iterator[ModelCell]:
    """Each shape at 90 and 95 % zeros with one row, and at 95 % with five beams; the first shape alone for a quick run."""
    shapes, cases = ((OURS,), ((95, 1),)) if quick else (tuple(SHAPES), ((90, 1), (95, 1), (95, 5)))
    for shape, (zeros, beams), threads in itertools.product(shapes, cases, counts):
        yield ModelCell(shape, zeros, beams, threads)


@torch.no_grad()
def measure_model(cell: ModelCell, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a new token, and the speedups of the loop with zeros over torch and over the dense loop."""
    torch.set_num_threads(cell.threads)
    model = build_model(cell, options.quick, options.seed)
    prompt = torch.randint(
        3, model.config.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(options.seed)
    )
    new_tokens = 4 if options.quick else NEW_TOKENS
    contenders = {name: contender(model, name) for name in CONTENDERS}
    steps = {name: generation(each, prompt, new_tokens, cell.beams) for name, each in contenders.items()}
    effort = {"rounds": 3, "round_seconds": 1e-3} if options.quick else {"rounds": 15}
    timing = time_contenders(steps, **effort)
    wanted = {
        "float32 zeros": ("float32 torch", "float32 dense", "int8 torch"),
        "int8 zeros": ("int8 torch", "int8 dense", "float32 torch"),
        "int8 both": ("int8 torch", "float32 torch"),
        "int8 torch": ("float32 torch",),
    }
    return {
        **asdict(cell),
        "parameters": trained_parameters(model),
        "sizes": sizes_of(cell, options.quick),
        "new_tokens": new_tokens,
        "measured_zeros": zeros_while(contenders["float32 torch"], steps["float32 torch"]),
        "times": {name: timing.summary(name) for name in steps},
        "token_ms": {name: timing.summary(name)["median_ms"] / new_tokens for name in steps},
        "speedups": {name: {rival: timing.speedup(name, rival) for rival in rivals} for name, rivals in wanted.items()},
    }


def sizes_of(cell: ModelCell, quick: bool) -> dict[str, int]:
    """Fields of the configuration."""
    return QUICK if quick else SHAPES[cell.shape].sizes


def build_model(cell: ModelCell, quick: bool, seed: int) -> PreTrainedModel:
    """New weights, and biases before the activation at which the share of zeros is the one asked for."""
    torch.manual_seed(seed)
    shape = SHAPES[cell.shape]
    model = shape.model(shape.make(**sizes_of(cell, quick))).eval()
    model.generation_config.eos_token_id = None
    for block in sparse_blocks(model):
        first = block.projections[block.first]
        deviation = first.weight.float().norm(dim=1)  # of the scores of an input with features of variance 1
        first.bias.copy_(-NormalDist().inv_cdf(cell.zeros / 100) * deviation)
    return model


def contender(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """A copy that computes as the name says, see CONTENDERS."""
    dtype, _, how = name.partition(" ")
    other = copy.deepcopy(model)
    if dtype == "int8" and how in (TORCH, BOTH):
        _make_head_plain(other)
        kept = (
            {id(part) for block in sparse_blocks(other) for part in block.projections.values()} if how == BOTH else ()
        )
        linear = {name for name, part in other.named_modules() if isinstance(part, nn.Linear) and id(part) not in kept}
        other = torch.ao.quantization.quantize_dynamic(other, linear, dtype=torch.qint8)
    if how == TORCH:
        return other
    use_sparse_ffn(other, int8=dtype == "int8")
    for part in other.modules():
        forward = vars(part).get("forward")
        if isinstance(forward, SparseFeedForward | SparseProjection):
            forward.all_active = how == DENSE
    return other


def _make_head_plain(model: PreTrainedModel) -> None:
    """torch quantises `nn.Linear` and no class derived from it, as the vocabulary head of our models is."""
    head = model.get_output_embeddings()
    plain = nn.Linear(head.in_features, head.out_features, bias=head.bias is not None)
    plain.weight, plain.bias = head.weight, head.bias
    model.set_output_embeddings(plain)


def generation(model: PreTrainedModel, prompt: Tensor, new_tokens: int, beams: int) -> Callable[[], Tensor]:
    """Greedy tokens or beams, all of the same length."""
    length = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    return lambda: model.generate(prompt, do_sample=False, num_beams=beams, **length)


def zeros_while(model: PreTrainedModel, step: Callable[[], Any]) -> float:
    """Share of the activations that are zero in a step of this model, its prompt included, all networks together."""
    zeros: list[Tensor] = []
    handles = [
        block.projections[block.first].register_forward_hook(
            lambda module, inputs, output: zeros.append((output <= 0).float().mean())
        )
        for block in sparse_blocks(model)
    ]
    step()
    for handle in handles:
        handle.remove()
    return float(torch.stack(zeros).mean())


if __name__ == "__main__":
    sys.exit(main())
