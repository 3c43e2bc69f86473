"""The analysis `likelihood`: how likely a model holds the given text, by position.

Plain negative log-likelihood: the loss of a training with label smoothing is another number, and ranks models differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer.analysis.analyze import Measured, Rows, in_words
from reluformer.analysis.collection import ALL, IGNORED_LABEL, forward
from reluformer.analysis.drawing import color_of_model, finish, new_figure, save
from reluformer.analysis.inputs import Subject
from reluformer.configuration.errors import UserError

# 1, 2, 3 to 4, 5 to 8, …: the last place of each group.
LAST_PLACES = 2 ** torch.arange(24)


def likelihood(subject: Subject) -> Measured:
    """Plain likelihood and accuracy of the given text by position."""
    outputs = ((batch.labels, forward(subject.model, batch).logits) for batch in subject.batches())
    table = likelihood_table(outputs)
    draw = partial(_draw, table, color_of_model(subject.model.config))
    return Measured(table, in_words(table, "nll", "accuracy", "tokens"), draw)


def likelihood_table(outputs: Iterable[tuple[Tensor, Tensor]]) -> Rows:
    """One row for all tokens and one for each group of positions that has any: means over the predicted tokens.

    nll: −log p of the token, in nats, without label smoothing. accuracy: whether it has the highest probability. entropy: of the
    prediction. vocabulary_nll: mean of −log p over the vocabulary without what the model rules out; label smoothing ε trains
    (1 − ε) nll + ε vocabulary_nll.

    Args:
        outputs: labels (batch, length), -100 for none, and logits (batch, length, vocabulary).

    Raises:
        UserError: no token, or a likelihood that is no number.
    """
    places, figures = [], []
    for labels, logits in outputs:
        real = labels != IGNORED_LABEL
        places.append(torch.arange(1, labels.shape[1] + 1, device=labels.device).expand_as(labels)[real].cpu())
        figures.append(torch.stack(list(_of_tokens(labels[real], logits[real])), dim=-1).cpu())
    place, figure = torch.cat(places), torch.cat(figures)
    names = ("nll", "accuracy", "entropy", "vocabulary_nll")
    table = [
        {**group, "tokens": int(inside.sum()), **dict(zip(names, figure[inside].mean(dim=0).tolist(), strict=True))}
        for group, inside in groups_of_positions(place)
    ]
    if not math.isfinite(table[0]["nll"]):
        raise UserError(
            f"likelihood: the cross-entropy of the model is {table[0]['nll']}; it must be a number. Does the text belong to the "
            "model, and has it two tokens?"
        )
    return table


def _of_tokens(labels: Tensor, logits: Tensor) -> Iterator[Tensor]:
    """Of each token, in float64: −log p, whether it has the highest p, entropy, and mean −log p over the vocabulary."""
    log_p = logits.float().log_softmax(dim=-1)
    possible = log_p > -torch.inf
    yield -log_p.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    yield (log_p.argmax(dim=-1) == labels).double()
    yield torch.special.entr(log_p.exp()).sum(dim=-1).double()
    yield (-log_p.where(possible, 0).sum(dim=-1) / possible.sum(dim=-1)).double()


def groups_of_positions(place: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """All tokens, then each group of positions that has any: its columns, and which of the tokens are in it.

    place: (tokens,), from 1.
    """
    yield {"positions": ALL, "last": None}, torch.ones_like(place, dtype=torch.bool)
    group = torch.bucketize(place, LAST_PLACES)
    for number in group.unique():
        first, last = int(LAST_PLACES[number - 1]) + 1 if number else 1, int(LAST_PLACES[number])
        yield {"positions": f"{first}-{last}" if first < last else str(first), "last": last}, group == number


def _draw(rows: Rows, color: str, path: Path, title: str) -> list[Path]:
    """Negative log-likelihood above and accuracy below, over the groups of positions."""
    figure = new_figure(6.4, 4.8)
    panels = (("nll", "−log p, nats a token", 1), ("accuracy", "accuracy, %", 100))
    for axes, (column, label, factor) in zip(figure.subplots(2, 1, sharex=True), panels, strict=True):
        whole, *values = [factor * row[column] for row in rows]
        axes.plot([row["positions"] for row in rows[1:]], values, color=color, marker="o", markersize=4)
        axes.axhline(whole, color=color, linewidth=0.8, linestyle=":", label="all tokens")
        axes.set_ylabel(label, fontsize=9)
        axes.legend(frameon=False, fontsize=8)
        finish(axes)
    axes.set_xlabel("position of the predicted token", fontsize=9)
    return save(figure, path, title)
