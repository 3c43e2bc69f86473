"""Would packed rows make training on single sentences faster? What token batches waste, and the time of a step without padding.

    python -m benchmarks.speed.packing                     some minutes, in a folder where data/ holds the corpora of the recipes
    python -m benchmarks.speed.packing --quick             seconds, the generated corpus alone; its figures mean nothing

Waste: the share of padding among the positions of one epoch of `TokenBatchSampler`, on the training split and with the budget of
each recipe, on either side. Steps: forward, backward and AdamW over some sentences of four batches of that plan, from long ones
to short ones, padded, and the same sentences in one row without any padding. `even` bounds what packing can gain: nearly as
many tokens in rows of one length, so that nothing is padding and nothing has to be told apart. One thread. Writes
`benchmarks/results/packing-cpu.json`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.end_to_end import training_step
from benchmarks.speed.timing import time_contenders
from benchmarks.speed.translation_models import OURS, PAD, SHAPES, build
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.data.encoding import encode_pairs, token_lengths
from reluformer.training.data.preparation import train_recipe_tokenizer
from reluformer.training.data.splits import load_split
from reluformer.training.data.token_batches import TokenBatchSampler
from reluformer.training.run.records import write_json

# name → arguments of its recipe. Europarl's recipes pack whole documents; here its sentences stand alone.
CORPORA = {
    "demo": (),
    "multi30k_en_de_tiny": (),
    "europarl_it_en_L128": ("--data.packing", "null", "--evaluation.headline", "bleu"),
}
PADDED, PACKED, EVEN = "padded", "packed", "even"
BATCHES = 4

Batch = dict[str, Tensor]


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "packing-cpu.json")
    parser.add_argument("--corpora", nargs="+", choices=list(CORPORA), default=list(CORPORA), help="default: all")
    parser.add_argument(
        "--shapes", nargs="+", choices=list(SHAPES), default=["tiny", "wide"], help="default: tiny wide"
    )
    parser.add_argument("--every", type=int, default=8, help="take each n-th sentence of a batch (default: 8)")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for a cell (default: 6)")
    parser.set_defaults(threads=1)
    options = parser.parse_args(arguments)
    record = begin(options)
    start = time.perf_counter()
    corpora, cells = {}, []
    for name in ["demo"] if options.quick else options.corpora:
        recipe = parse_recipe(["--config", f"configuration/recipes/{name}.yaml", *CORPORA[name]])
        encoded, pieces = encoded_sentences(recipe)
        plan = plan_of(recipe, encoded)
        corpora[name] = waste(encoded, plan) | {"tokens_per_batch": plan.tokens_per_batch, "pieces": pieces}
        print(name, corpora[name])
        for shape in ("quick",) if options.quick else options.shapes:
            for dtype in ("float32", "bfloat16"):
                cells.append(
                    measure(name, shape, dtype, pieces, list(some_batches(encoded, plan, options.every)), options)
                )
                print(
                    {
                        key: cells[-1][key]
                        for key in ("corpus", "shape", "dtype", "speedups", "tokens", "loss_difference")
                    }
                )
    settings = {
        "batches": BATCHES,
        "every": options.every,
        "budget": options.budget,
        "threads": torch.get_num_threads(),
        "shapes": SHAPES,
    }
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start}
    print(write_json(options.output, {**result, "corpora": corpora, "cells": cells}))
    return 0


def encoded_sentences(recipe: Recipe) -> tuple[datasets.Dataset, int]:
    """The training split as token ids, and the size of the vocabulary."""
    pairs, _ = load_split(recipe.data, "train")
    tokenizer = train_recipe_tokenizer(recipe, pairs)
    encoded, _ = encode_pairs(pairs, tokenizer, max_length=recipe.data.max_length, name="train tokens", workers=1)
    return encoded, len(tokenizer)


def plan_of(recipe: Recipe, encoded: datasets.Dataset) -> TokenBatchSampler:
    lengths = (token_lengths(encoded, side) for side in ("input_ids", "labels"))
    return TokenBatchSampler(*lengths, tokens_per_batch=recipe.batching.tokens_per_batch, seed=recipe.training.seed)


def waste(encoded: datasets.Dataset, plan: TokenBatchSampler) -> dict[str, Any]:
    """Padding as a share of all positions of an epoch: of each side, and of both."""
    real, padded = {}, {}
    batches = list(plan)
    for side, column in (("source", "input_ids"), ("target", "labels")):
        lengths = token_lengths(encoded, column)
        real[side] = int(sum(lengths[batch].sum() for batch in batches))
        padded[side] = int(sum(len(batch) * lengths[batch].max() for batch in batches))
    real["both"], padded["both"] = sum(real.values()), sum(padded.values())
    shares = {side: 1 - real[side] / padded[side] for side in real}
    return {"pairs": len(encoded), "batches": len(batches), "tokens": real, "padding_share": shares}


def some_batches(encoded: datasets.Dataset, plan: TokenBatchSampler, every: int) -> Iterator[dict[str, Batch]]:
    """Padded and packed, of the same sentences, and even."""
    longest = np.maximum(token_lengths(encoded, "input_ids"), token_lengths(encoded, "labels"))
    batches = sorted(plan, key=lambda batch: -longest[batch].max())
    for position in range(BATCHES):
        rows = encoded[batches[(2 * position + 1) * len(batches) // (2 * BATCHES)][::every]]
        sources, targets = ([torch.tensor(ids) for ids in rows[side]] for side in ("input_ids", "labels"))
        packed = packed_batch(sources, targets)
        yield {PADDED: padded_batch(sources, targets), PACKED: packed, EVEN: even_batch(packed, len(sources))}


def padded_batch(sources: list[Tensor], targets: list[Tensor]) -> Batch:
    """As the recipes' collator: each side as long as its longest sentence."""
    return {
        "input_ids": pad_sequence(sources, batch_first=True, padding_value=PAD),
        "attention_mask": pad_sequence([torch.ones_like(ids) for ids in sources], batch_first=True),
        "labels": pad_sequence(targets, batch_first=True, padding_value=-100),
    }


def packed_batch(sources: list[Tensor], targets: list[Tensor]) -> Batch:
    """All sentences in one row on either side."""
    numbers = [
        torch.cat([torch.full_like(ids, number) for number, ids in enumerate(side, 1)]) for side in (sources, targets)
    ]
    return {
        "input_ids": torch.cat(sources).unsqueeze(0),
        "labels": torch.cat(targets).unsqueeze(0),
        "segment_ids": numbers[0].unsqueeze(0),
        "decoder_segment_ids": numbers[1].unsqueeze(0),
    }


def even_batch(packed: Batch, sentences: int) -> Batch:
    """The tokens of a packed batch as `sentences` rows of the mean length, rounded down, on either side."""
    rows = {
        name: packed[name][0, : tokens - tokens % sentences].view(sentences, -1)
        for name in ("input_ids", "labels")
        if (tokens := packed[name].shape[1])
    }
    return {**rows, "attention_mask": torch.ones_like(rows["input_ids"])}


def measure(
    corpus: str, shape: str, dtype: str, pieces: int, batches: list[dict[str, Batch]], options: argparse.Namespace
) -> dict[str, Any]:
    """Time of a step over each of the batches in turn, and how the losses, padded and packed, differ without dropout."""
    longest = max(given[PACKED][side].shape[1] for given in batches for side in ("input_ids", "labels"))
    sizes = {**SHAPES[shape], "vocab_size": pieces, "max_position_embeddings": longest}
    models = {name: build(OURS, sizes, 0.1, options.seed) for name in (PADDED, PACKED, EVEN)}
    with torch.no_grad():
        losses = [[float(models[name].eval()(**given[name]).loss) for given in batches] for name in (PADDED, PACKED)]
    difference = max(abs(a - b) for a, b in zip(*losses, strict=True))
    steps = {
        name: in_turn([training_step(model.train(), given[name], dtype) for given in batches])
        for name, model in models.items()
    }
    effort = {"rounds": 3, "round_seconds": 1e-3} if options.quick else {}
    timing = time_contenders(steps, budget=options.budget, **effort)
    return {
        "corpus": corpus,
        "shape": shape,
        "dtype": dtype,
        "sentences": [len(given[PADDED]["input_ids"]) for given in batches],
        "tokens": {name: sum(real_tokens(given[name]) for given in batches) for name in models},
        "times": {name: timing.summary(name) for name in timing.seconds},
        "speedups": {name: timing.speedup(name, PADDED) for name in (PACKED, EVEN)},
        "loss_difference": difference,
    }


def real_tokens(batch: Batch) -> int:
    return int((batch["labels"] != -100).sum() + batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum())


def in_turn(steps: list[Callable[[], Any]]) -> Callable[[], Any]:
    def all_steps() -> None:
        for step in steps:
            step()

    return all_steps


if __name__ == "__main__":
    sys.exit(main())
