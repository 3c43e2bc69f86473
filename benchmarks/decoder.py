"""Language models: ReLUFormerForCausalLM with ReLU and softmax attention beside GPT-2 and Llama of the library, on a
CPU.

Ours are converted from the library's model, so that all have its shape and its weights, without dropout. Training is
forward, backward and AdamW, bfloat16 by autocast. Prefill is a prompt as long as the context, up to its last logits.
Generation is greedy, with a growing cache that ends at the context; weights are in bfloat16 in the last two.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import time_contenders
from benchmarks.translation import generation_step, inference_step, parameters_of, training_step
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME
from reluformer.training.conversion import convert_model

RELU, UNREGULARIZED, SOFTMAX = "ReLU", "ReLU, λ = 0", "softmax"
GPT2, LLAMA = GPT2LMHeadModel.__name__, LlamaForCausalLM.__name__
COMPARED = {RELU: (UNREGULARIZED, SOFTMAX, GPT2, LLAMA), SOFTMAX: (GPT2, LLAMA)}
TASKS, LIBRARIES = ("training", "prefill", "generation"), (GPT2, LLAMA)
DTYPES, CONTEXTS = ("float32", "bfloat16"), (128, 1024, 4096)
SHAPE = {"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 4000}
QUICK_SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 60}
BATCH_TOKENS, NEW_TOKENS, SECONDS = 4096, 32, 8.0


def cells(quick: bool) -> Iterator[Names]:
    """Every library in every dtype; of a quick run in one of them each."""
    kinds = zip(LIBRARIES, DTYPES, strict=True) if quick else itertools.product(LIBRARIES, DTYPES)
    for task, kind, context in itertools.product(TASKS, kinds, (16,) if quick else CONTEXTS):
        yield dict(zip(("task", "library", "dtype", "context"), (task, *kind, context), strict=True))


def measure(cell: Names, options: argparse.Namespace) -> Names:
    """Tokens a second, and the speedups of `COMPARED`."""
    training, dtype = cell["task"] == "training", getattr(torch, cell["dtype"])
    shape = QUICK_SHAPE if options.quick else SHAPE
    torch.manual_seed(options.seed)
    models = build(cell["library"], {**shape, "max_position_embeddings": cell["context"]}, training, dtype)
    rows = (2 if options.quick else BATCH_TOKENS // cell["context"]) if training else 1
    ids = torch.randint(3, shape["vocab_size"], (rows, cell["context"]))
    tokens = ids.numel()
    if training:
        batch = {"input_ids": ids, "labels": ids}
        steps = {name: training_step(model, batch, cell["dtype"]) for name, model in models.items()}
    elif cell["task"] == "prefill":
        inputs = {"input_ids": ids, "use_cache": True, "logits_to_keep": 1}
        steps = {name: inference_step(model, inputs, "float32") for name, model in models.items()}
    else:
        tokens = 3 if options.quick else NEW_TOKENS
        steps = {name: decoding_step(model, ids[:, :-tokens], tokens) for name, model in models.items()}
    record = time_contenders(steps, **effort(options, budget=SECONDS)).record(COMPARED, tokens, "tokens a second")
    return {"rows": rows, "tokens": tokens, "parameters": parameters_of(models), **record}


def build(library: str, sizes: dict[str, int], training: bool, dtype: torch.dtype) -> dict[str, PreTrainedModel]:
    """All contenders by name; ours compute attention as they do by default, the library's by `sdpa`.

    For training, ours are without logits as in `reluformer train`, and with ReLU attention with and without the
    regulariser, which computes nothing in evaluation.
    """
    theirs = library_model(library, sizes).to(torch.float32 if training else dtype)
    relu = {"attention_activation": "relu"}
    changes: dict[str, dict[str, Any]] = {RELU: relu}
    if training:
        changes[UNREGULARIZED] = {**relu, "regularization_weight": 0.0}
    models = {}
    for name, fields in (*changes.items(), (SOFTMAX, {})):
        # copies: what is converted may share memory, and each contender is trained by itself
        models[name], *_ = convert_model(copy.deepcopy(theirs), {**fields, "skip_logits": True})
    return {name: model.train(training) for name, model in {**models, library: theirs}.items()}


def library_model(library: str, sizes: dict[str, int]) -> PreTrainedModel:
    fields = {**sizes, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "sdpa"}
    if library == GPT2:
        return GPT2LMHeadModel(GPT2Config(**fields, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0))
    # two thirds of GPT-2's FFN: with a gate as many parameters
    return LlamaForCausalLM(LlamaConfig(**fields, intermediate_size=8 * sizes["hidden_size"] // 3))


def decoding_step(model: PreTrainedModel, prompt: Tensor, new_tokens: int) -> Callable[[], Tensor]:
    """Greedy generation after a prompt (rows, tokens) of which the cache holds all but the last token: the
    sequences."""
    cache, held = DynamicCache(config=model.config), prompt.shape[1] - 1
    inference_step(model, {"input_ids": prompt[:, :-1], CACHE_NAME: cache, "logits_to_keep": 1}, "float32")()
    batch = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), CACHE_NAME: cache}
    generate = generation_step(model, batch, new_tokens, "float32", beams=1)

    def step() -> Tensor:
        cache.crop(held - cache.get_seq_length())  # a negative number: how many tokens are removed
        return generate()

    return step


BENCHMARK = Benchmark("decoder", cells, measure, {"budget": SECONDS, "shape": SHAPE, "optimizer": "AdamW, fused"})
