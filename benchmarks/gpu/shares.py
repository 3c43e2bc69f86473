"""Training with a share of the regulariser: what `regularization_share` gives back of the price of S and T.

Between the whole regulariser, which needs S and T of each attention, and λ = 0, which needs neither; beside Marian with
label smoothing. The columns are those of `models`, whose attention has dropout; here it has none, so that the
regulariser's share of the time is the largest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from benchmarks import translation
from benchmarks.gpu.campaign import Cell
from benchmarks.gpu.models import BATCHES, LENGTHS, LONG, UNPADDED, Group, Made, cells_of, trained_by
from benchmarks.translation import MARIAN_SMOOTHED, OURS, OURS_UNREGULARIZED, SHAPES

SHARES, TOY_SHARES = (1.0, 0.5, 0.25, 0.125), (1.0, 0.5)
OF_SHARE = OURS + ", share {}"


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    yield from cells_of(groups(options.toy))


def groups(toy: bool) -> Iterator[Group]:
    batches = [batch for length in (UNPADDED, LONG) for batch in BATCHES if batch[1] == length]
    for shape, lengths, tokens in [("quick", "quick", 64)] if toy else batches:
        names = {"task": "training", "shape": shape, "lengths": lengths, "compiled": False}
        shares = [OF_SHARE.format(share) for share in (TOY_SHARES if toy else SHARES)]
        contenders = (*shares, OURS_UNREGULARIZED, MARIAN_SMOOTHED)
        yield names, contenders, partial(train, shape, lengths, tokens), 12


def train(shape: str, lengths: str, tokens: int, name: str) -> Made:
    batch = translation.padded_batch(LENGTHS[lengths], SHAPES[shape]["vocab_size"], tokens, 0)
    plain, _, share = name.partition(", share ")
    model = translation.build(plain, SHAPES[shape], 0.0, 0)
    if share:
        model.config.regularization_share = float(share)
    return trained_by(model, batch, translation.batch_facts(batch)["target_tokens"])
