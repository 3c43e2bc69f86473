"""The analysis `likelihood`: how likely a model holds the given text, by position.

Plain negative log-likelihood: the loss of a training with label smoothing is another number, and ranks models differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from reluformer.analysis.analyze import Measured, Rows, in_words
from reluformer.analysis.collection import ALL, IGNORED_LABEL, forward
from reluformer.analysis.drawing import color_of_model, draw_positions
from reluformer.analysis.inputs import Subject
from reluformer.configuration.errors import UserError

_PANELS = {"nats a token": {"nll": "−log p"}, "share of the tokens": {"accuracy": "accuracy"}}


def likelihood(subject: Subject) -> Measured:
    """Plain likelihood and accuracy of the given text by position."""
    outputs = ((batch.labels, forward(subject.model, batch).logits) for batch in subject.batches())
    table = likelihood_table(outputs)
    draw = partial(draw_positions, table, _PANELS, color_of_model(subject.model.config), "position of the token")
    return Measured(table, in_words(table, "nll", "accuracy", "tokens"), draw)


def likelihood_table(outputs: Iterable[tuple[Tensor, Tensor]]) -> Rows:
    """One row for all tokens and one for each group of positions that has any: means over the predicted tokens.

    nll: −log p of the token, in nats, without label smoothing. accuracy: whether it has the highest probability.

    Args:
        outputs: labels (batch, length), -100 for none, and logits (batch, length, vocabulary).

    Raises:
        UserError: no token, or a likelihood that is no number.
    """
    places, nll, right = [], [], []
    for labels, logits in outputs:
        real = labels != IGNORED_LABEL
        wanted, predicted = labels[real], logits[real].float()
        places.append(real.nonzero()[:, 1].cpu() + 1)
        nll.append(cross_entropy(predicted, wanted, reduction="none").double().cpu())
        right.append((predicted.argmax(dim=-1) == wanted).double().cpu())
    figures = {"nll": torch.cat(nll), "accuracy": torch.cat(right)}
    table = [
        {**group, "tokens": int(inside.sum()), **{name: float(each[inside].mean()) for name, each in figures.items()}}
        for group, inside in groups_of_positions(torch.cat(places))
    ]
    require_number("likelihood", table[0]["nll"])
    return table


def require_number(what: str, cross_entropy: float) -> None:
    """Raises `UserError` for a cross-entropy of a model that is NaN, as of no token, or infinity."""
    if not math.isfinite(cross_entropy):
        raise UserError(
            f"{what}: the cross-entropy of the model is {cross_entropy}; it must be a number. Does the text belong to the model, "
            "and has it two tokens?"
        )


def groups_of_positions(place: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """All tokens, then each group of positions that has any, 1, 2, 3 to 4, 5 to 8, …: its columns, and which tokens are in it.

    place: (tokens,), from 1.
    """
    yield {"positions": ALL, "last": None}, torch.ones_like(place, dtype=torch.bool)
    lasts = 2 ** torch.arange(24)
    group = torch.bucketize(place, lasts)
    for number in group.unique():
        first, last = int(lasts[number - 1]) + 1 if number else 1, int(lasts[number])
        yield {"positions": f"{first}-{last}" if first < last else str(first), "last": last}, group == number
