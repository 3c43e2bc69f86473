"""Whole models whose feed-forward networks skip zeros in `generate`, beside torch, the loop without skipping, and int8.

Contenders are torch (int8: `quantize_dynamic` of every `nn.Linear`), "dense", our loop with every neuron active, and
"zeros", our loop as `use_sparse_ffn` puts it in place; "both" is that in int8, with torch's int8 for all other
matrices. Weights are new, and a bias before the activation makes the share of zeros, which a run counts.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM, PreTrainedModel

from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import time_contenders
from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM, use_sparse_ffn
from reluformer.modeling_reluformer.sparse_ffn.forward import sparse_blocks

TORCH, DENSE, SPARSE, BOTH = "torch", "dense", "zeros", "both"
THREADS = (1, 2)
PROMPT, NEW_TOKENS, ROUNDS = 8, 32, 15
OURS, LLAMA, OPT = "ReLUFormer decoder, GLU", "Llama with ReLU, GLU", "OPT, MLP"  # the goals are about the first
CONTENDERS = (
    *(f"float32 {how}" for how in (TORCH, DENSE, SPARSE)),
    *(f"int8 {how}" for how in (TORCH, DENSE, SPARSE, BOTH)),
)
COMPARED = {
    "float32 zeros": ("float32 torch", "float32 dense", "int8 torch"),
    "int8 zeros": ("int8 torch", "int8 dense", "float32 torch"),
    "int8 both": ("int8 torch", "float32 torch"),
    "int8 torch": ("float32 torch",),
}


def cells(quick: bool) -> Iterator[Names]:
    """Each model at 90 and 95 % zeros with one row, and at 95 % with five beams."""
    cases = ((OURS,), ((95, 1),), (1,)) if quick else (SHAPES, ((90, 1), (95, 1), (95, 5)), THREADS)
    for shape, (zeros, beams), count in itertools.product(*cases):
        yield {"shape": shape, "zeros": zeros, "beams": beams, "threads": count}


@torch.no_grad()
def measure(cell: Names, options: argparse.Namespace) -> Names:
    """Times of `generate`, and the zeros in one call of it."""
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch.ao")  # torch's int8
    sizes = QUICK if options.quick else SHAPES[cell["shape"]]
    torch.manual_seed(options.seed)
    model = with_zeros(MODELS[cell["shape"]](sizes), cell["zeros"])
    prompt = torch.randint(3, sizes["vocab_size"], (1, PROMPT))
    new_tokens = 4 if options.quick else NEW_TOKENS
    length = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    length |= {"num_beams": cell["beams"], "do_sample": False}
    contenders = {name: contender(model, name) for name in CONTENDERS}
    steps = {name: lambda each=each: each.generate(prompt, **length) for name, each in contenders.items()}
    timing = time_contenders(steps, **effort(options, rounds=ROUNDS))
    zeros = zeros_while(contenders[f"float32 {TORCH}"], steps[f"float32 {TORCH}"])
    facts = {"parameters": model.num_parameters(), "sizes": sizes, "new_tokens": new_tokens}
    return {**facts, "measured_zeros": zeros, **timing.record(COMPARED)}


def _sizes(width: int, inner_name: str = "intermediate_size") -> dict[str, int]:
    layers = {"num_hidden_layers": 4, "num_attention_heads": width // 64, "vocab_size": 4096}
    return {"hidden_size": width, inner_name: 4096, **layers}


SHAPES = {OURS: _sizes(512), LLAMA: _sizes(1024), OPT: _sizes(1024, "ffn_dim")}
QUICK = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
MODELS: dict[str, Callable[[dict[str, int]], PreTrainedModel]] = {
    OURS: lambda sizes: ReLUFormerForCausalLM(
        ReLUFormerDecoderConfig.from_preset("llama_relu", ffn_bias=True, **sizes)
    ),
    LLAMA: lambda sizes: LlamaForCausalLM(LlamaConfig(hidden_act="relu", mlp_bias=True, **sizes)),
    OPT: lambda sizes: OPTForCausalLM(OPTConfig(activation_function="relu", word_embed_proj_dim=1024, **sizes)),
}


def with_zeros(model: PreTrainedModel, percent: int) -> PreTrainedModel:
    """Biases before the activation at which about so many activations are zero; generation has no end."""
    model.eval().generation_config.eos_token_id = None
    for block in sparse_blocks(model):
        first = block.projections[block.first]
        deviation = first.weight.float().norm(dim=1)  # of the scores of an input with features of variance 1
        first.bias.copy_(-NormalDist().inv_cdf(percent / 100) * deviation)
    return model


def contender(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """A copy that computes as the name says, for example "int8 zeros"."""
    dtype, _, how = name.partition(" ")
    other = copy.deepcopy(model)
    if dtype == "int8" and how in (TORCH, BOTH):
        make_head_plain(other)
        kept = sparse_blocks(other) if how == BOTH else []
        kept = {id(projection) for block in kept for projection in block.projections.values()}
        linear = {name for name, part in other.named_modules() if isinstance(part, nn.Linear) and id(part) not in kept}
        other = torch.ao.quantization.quantize_dynamic(other, linear, dtype=torch.qint8)
    if how != TORCH:
        use_sparse_ffn(other, int8=dtype == "int8")
        for part in other.modules():
            if hasattr(vars(part).get("forward"), "all_active"):
                part.forward.all_active = how == DENSE
    return other


def make_head_plain(model: PreTrainedModel) -> None:
    """torch quantises `nn.Linear` and no class derived from it, as the vocabulary head of our models is."""
    head = model.get_output_embeddings()
    plain = nn.Linear(head.in_features, head.out_features, bias=head.bias is not None)
    plain.weight, plain.bias = head.weight, head.bias
    model.set_output_embeddings(plain)


def zeros_while(model: PreTrainedModel, step: Callable[[], Any]) -> float:
    """Share of the activations that are zero in a step of this model, its prompt included, all networks together."""
    zeros: list[Tensor] = []

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        zeros.append((output <= 0).float().mean())

    first = [block.projections[block.first] for block in sparse_blocks(model)]
    handles = [projection.register_forward_hook(count) for projection in first]
    step()
    for handle in handles:
        handle.remove()
    return float(torch.stack(zeros).mean())


BENCHMARK = Benchmark("sparse-models", cells, measure, {"threads": "1 and 2", "rounds": ROUNDS})
