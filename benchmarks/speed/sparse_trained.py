"""A trained model that decodes with the zeros it has, beside its dense twin: perplexity, zeros, and milliseconds of a token.

    python -m benchmarks.speed.sparse_trained MODEL TWIN --text FILE

MODEL and TWIN are folders of decoder-only models with one tokenizer, and FILE is text that neither was trained on. Two states of
MODEL are measured: as it was trained, and with the threshold behind its activation that leaves 95 % zeros on the text, whatever
that does to the perplexity. Contenders are those of sparse_models.py, and the twin as torch computes it, in alternating rounds.
Writes `benchmarks/results/sparse-trained-cpu.json`; sparse_tables.py makes the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.measurement_file import benchmark_parser
from benchmarks.speed.end_to_end import trained_parameters
from benchmarks.speed.sparse_models import (
    CONTENDERS,
    NEW_TOKENS,
    TORCH,
    begin_decoding,
    contender,
    generation,
)
from benchmarks.speed.timing import time_contenders
from reluformer.analysis.causal_texts import CausalText, causal_batches, read_causal_text
from reluformer.analysis.collection import observe
from reluformer.analysis.likelihood import LikelihoodSums
from reluformer.modeling_reluformer.sparse_ffn.blocks import sparse_blocks
from reluformer.training.language_trainer import perplexity
from reluformer.training.loading import load_language_model
from reluformer.training.run.records import write_json
from reluformer.training.zeros import set_zeros

SHARE = 0.95
PROMPT = 32  # tokens of the text that generation goes on from
BISECTIONS = 16
TWIN = "twin"


@dataclass(frozen=True)
class State:
    """name: as the page has it. threshold: behind the activation. zeros: share of the activations on the text."""

    name: str
    threshold: float
    zeros: float
    perplexity: float


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "sparse-trained-cpu.json")
    parser.add_argument("model", type=Path, help="folder of the model with zeros")
    parser.add_argument("twin", type=Path, help="folder of its dense twin")
    parser.add_argument("--text", type=Path, required=True, help="text that neither was trained on")
    parser.add_argument("--contexts", type=int, default=160, help="contexts of the text that are read (default: 160)")
    options = parser.parse_args(arguments)
    counts, record = begin_decoding(options)
    start = time.perf_counter()
    model, text = _load(options.model, options)
    twin, _ = _load(options.twin, options)
    states = states_of(model, text)
    result = {
        **record,
        "settings": {
            **record["settings"],
            "prompt": PROMPT,
            "new_tokens": 4 if options.quick else NEW_TOKENS,
            "text": {"file": str(options.text), **text.facts, "contexts_read": len(text.contexts)},
        },
        "model": _facts(options.model, model),
        "twin": {**_facts(options.twin, twin), "perplexity": passed(twin, text)[0]},
        "states": [asdict(state) for state in states],
        "cells": [measure(model, twin, state, text, threads, options) for state in states for threads in counts],
    }
    print(write_json(options.output, {**result, "seconds": time.perf_counter() - start}))
    return 0


def _load(folder: Path, options: argparse.Namespace) -> tuple[PreTrainedModel, CausalText]:
    model, tokenizer = load_language_model(str(folder))
    model.eval().generation_config.eos_token_id = None
    text = read_causal_text(options.text, model, tokenizer)
    return model, CausalText(text.contexts[: options.contexts], text.facts)


def _facts(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    sizes = {name: getattr(model.config, name) for name in names}
    return {"folder": str(folder), "parameters": trained_parameters(model), "sizes": sizes}


def states_of(model: PreTrainedModel, text: CausalText) -> list[State]:
    """As trained, and with the least threshold of a bisection that leaves `SHARE` zeros; the model is given back as it was."""
    trained = model.config.ffn_threshold

    def state(name: str, threshold: float) -> State:
        set_zeros(model, threshold=threshold)
        return State(name, threshold, *reversed(passed(model, text)))

    first = state("as trained", trained)
    if first.zeros >= SHARE:
        return [first]
    least, most = trained, 1.0 + trained
    while state("", most).zeros < SHARE:
        most *= 2
    for _ in range(BISECTIONS):
        middle = (least + most) / 2
        least, most = (least, middle) if state("", middle).zeros >= SHARE else (middle, most)
    last = state(f"{SHARE:.0%} zeros", most)
    set_zeros(model, threshold=trained)
    return [first, last]


def passed(model: PreTrainedModel, text: CausalText) -> tuple[float, float]:
    """Perplexity of the text, and share of the activations that are zero."""
    sums, zeros = LikelihoodSums(), torch.zeros(2, dtype=torch.double)

    def count(stack: str, layer: int, scores: Tensor) -> None:
        zeros.add_(torch.tensor([float((scores == 0).sum()), scores.numel()]))

    observe(model, causal_batches(text, model.device, batch_tokens=2_048), on_scores=count, on_logits=sums.update)
    return perplexity(sums.table()[0]["nll"]), float(zeros[0] / zeros[1])


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    twin: PreTrainedModel,
    state: State,
    text: CausalText,
    threads: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Milliseconds of a new token of every contender, and the speedups of the loop with zeros over torch, dense and twin."""
    torch.set_num_threads(threads)
    set_zeros(model, threshold=state.threshold)
    prompt = torch.tensor([text.contexts[0][:PROMPT]])
    new_tokens = 4 if options.quick else NEW_TOKENS
    models = {name: contender(model, name) for name in CONTENDERS}
    models |= {f"{dtype} {TWIN}": contender(twin, f"{dtype} {TORCH}") for dtype in ("float32", "int8")}
    steps = {name: generation(each, prompt, new_tokens, 1) for name, each in models.items()}
    effort = {"rounds": 3, "round_seconds": 1e-3} if options.quick else {"rounds": 25}
    timing = time_contenders(steps, **effort)
    rivals = {
        f"{dtype} zeros": [f"{dtype} {rival}" for rival in (TORCH, "dense", TWIN)] + ["int8 torch"]
        for dtype in ("float32", "int8")
    }
    rivals["int8 both"] = ["int8 torch", f"int8 {TWIN}"]
    return {
        "state": state.name,
        "threads": threads,
        "generated_zeros": zeros_of_new_tokens(models[f"float32 {TORCH}"], steps[f"float32 {TORCH}"]),
        "times": {name: timing.summary(name) for name in steps},
        "token_ms": {name: timing.summary(name)["median_ms"] / new_tokens for name in steps},
        "speedups": {
            name: {rival: timing.speedup(name, rival) for rival in dict.fromkeys(each)} for name, each in rivals.items()
        },
    }


def zeros_of_new_tokens(model: PreTrainedModel, step: Callable[[], Tensor]) -> float:
    """Share of the activations that are zero in a step of this model, without those of the prompt."""
    found: list[Tensor] = []

    def count(module: torch.nn.Module, inputs: tuple[Tensor]) -> None:
        if inputs[0].shape[-2] == 1:
            found.append((inputs[0] == 0).double().mean())

    handles = [block.projections[block.second].register_forward_pre_hook(count) for block in sparse_blocks(model)]
    step()
    for handle in handles:
        handle.remove()
    return float(torch.stack(found).mean())


if __name__ == "__main__":
    sys.exit(main())
