"""The language models that decoder.py times: ReLUFormerForCausalLM with ReLU and softmax attention, and the library's own.

Ours are converted from the library's model, so that all have its shape and its weights, and the one with softmax its logits.
"""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.studies.parser import layer
from reluformer.training.foreign_models import convert_model

RECIPE = "code_decoder_tiny"
RELU, UNREGULARIZED, SOFTMAX = "ReLU", "ReLU, λ = 0", "softmax"
GPT2, LLAMA = GPT2LMHeadModel.__name__, LlamaForCausalLM.__name__
# name of the first → names of those that it is compared with, where they are there
COMPARED = {RELU: (UNREGULARIZED, SOFTMAX, GPT2, LLAMA), SOFTMAX: (GPT2, LLAMA)}
QUICK_SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 60}


@functools.cache
def shape(quick: bool = False) -> dict[str, int]:
    """The sizes of the recipe's model; tiny ones for a quick run."""
    recipe = layer(RECIPE)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    sizes = {**{name: recipe["model"][name] for name in names}, "vocab_size": recipe["tokenizer"]["vocab_size"]}
    return {**sizes, **QUICK_SHAPE} if quick else sizes


def build(library: str, context: int, *, training: bool, dtype: torch.dtype, quick: bool, seed: int) -> dict[str, Any]:
    """All contenders by name; ours compute attention as they do by default, the library's by `sdpa`.

    Args:
        library: GPT2 or LLAMA.
        context: positions of the models, for which γ is √(2 · context).
        training: in training mode, without dropout, ours without logits as in `reluformer train`, and with ReLU attention with
            and without the regulariser; else in evaluation mode, where the regulariser computes nothing.
        dtype: of the weights.
        quick: tiny sizes.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    foreign = _library_model(library, {**shape(quick), "max_position_embeddings": context}).to(dtype)
    relu = {"attention_activation": "relu", "attention_gamma": math.sqrt(2 * context), "skip_logits": True}
    unregularized = {UNREGULARIZED: {**relu, "regularization_weight": 0.0}} if training else {}
    changes = {RELU: relu, **unregularized, SOFTMAX: {"skip_logits": True}}
    models = {name: _converted(foreign, fields) for name, fields in changes.items()}
    return {name: model.train(training) for name, model in {**models, library: foreign}.items()}


def _library_model(library: str, sizes: dict[str, int]) -> PreTrainedModel:
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if library == GPT2:
        no_dropout = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, **tokens, attn_implementation="sdpa"))
    # two thirds of GPT-2's FFN: with a gate as many parameters
    width = 8 * sizes["hidden_size"] // 3
    return LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=width, **tokens, attn_implementation="sdpa"))


def _converted(foreign: PreTrainedModel, changes: dict[str, Any]) -> PreTrainedModel:
    """A copy: what is converted may share memory, and each contender is trained by itself."""
    return convert_model(copy.deepcopy(foreign), changes)[0]
