"""The figure `likelihood`: how likely a model holds the given text, token by token, and how that changes with the position.

Plain negative log-likelihood: the loss of a training with label smoothing is another figure, and ranks models differently.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.collection import IGNORED_LABEL, AnyBatch
from reluformer.analysis.colors import color_of_model
from reluformer.analysis.drawing import finish, new_figure, save
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken, Watch
from reluformer.analysis.head_sums import ALL
from reluformer.configuration.errors import UserError

DEFINITIONS = {
    "positions": "places of the predicted tokens in their sentence, document or context, from 1; `all`: of all tokens",
    "tokens": "how many tokens were predicted there, the end token with them",
    "nll": "mean over them of −log p(token | the given tokens before it), in nats, without label smoothing",
    "accuracy": "share of them that have the highest probability",
    "entropy": "mean entropy of the predicted distribution over the vocabulary, in nats",
    "vocabulary_nll": (
        "mean over the tokens, and over the vocabulary without what the model rules out, of −log p; label smoothing ε trains "
        "(1 − ε) nll + ε vocabulary_nll"
    ),
}
# 1, 2, 3 to 4, 5 to 8, …: the last place of each group. The last group is open.
LAST_PLACES = 2 ** torch.arange(24)


class LikelihoodSums:
    """Sums over the predicted tokens, by group of positions."""

    def __init__(self) -> None:
        self._sums = torch.zeros(len(LAST_PLACES) + 1, 5, dtype=torch.double)

    def update(self, batch: AnyBatch, logits: Tensor) -> None:
        """Adds the tokens of a batch. logits: (batch, length, vocabulary), of `batch.predicted`."""
        labels = batch.predicted
        real = labels != IGNORED_LABEL
        places = torch.arange(1, labels.shape[1] + 1, device=labels.device).expand_as(labels)[real]
        chosen, log_p = labels[real], logits[real].float().log_softmax(dim=-1)
        possible = log_p > -torch.inf
        figures = (
            torch.ones_like(chosen),
            -log_p.gather(1, chosen.unsqueeze(1)).squeeze(1),
            log_p.argmax(dim=-1) == chosen,
            torch.special.entr(log_p.exp()).sum(dim=-1),
            -log_p.where(possible, 0).sum(dim=-1) / possible.sum(dim=-1),
        )
        added = torch.stack([figure.double() for figure in figures], dim=-1).cpu()
        self._sums.index_add_(0, torch.bucketize(places.cpu(), LAST_PLACES), added)

    def table(self) -> Rows:
        """One row for all tokens and one for each group of positions that has any; columns as in `DEFINITIONS`.

        Raises:
            UserError: no token, or a likelihood that is no number.
        """
        groups = [(ALL, self._sums.sum(dim=0))]
        groups += [(positions_of(group), sums) for group, sums in enumerate(self._sums) if sums[0]]
        if len(groups) == 1:
            raise UserError("likelihood: there is nothing that the model predicts; give a text of at least two tokens")
        nll = float(groups[0][1][1] / groups[0][1][0])
        if not math.isfinite(nll):
            raise UserError(
                f"likelihood: the cross-entropy of the model is {nll}; it must be a number. Does the text belong to the model?"
            )
        names = ("nll", "accuracy", "entropy", "vocabulary_nll")
        return [
            {
                "positions": positions,
                "tokens": int(sums[0]),
                **dict(zip(names, (sums[1:] / sums[0]).tolist(), strict=True)),
            }
            for positions, sums in groups
        ]


def positions_of(group: int) -> str:
    """The places of a group, counted from 0, as a table calls them: `1`, `2`, `3-4`, …"""
    first = 1 if group == 0 else int(LAST_PLACES[group - 1]) + 1
    last = int(LAST_PLACES[min(group, len(LAST_PLACES) - 1)])
    return f"{first}-{last}" if first < last else str(first)


class Likelihood(Figure):
    """Plain likelihood and accuracy of the given text by position."""

    name = "likelihood"
    needs = TEXT
    of_decoders = True
    definitions = DEFINITIONS

    def watch(self, model: PreTrainedModel) -> Watch:
        self._sums, self._color = LikelihoodSums(), color_of_model(model.config)
        return Watch(on_logits=self._sums.update)

    def take(self, subject: Subject) -> Taken:
        table = self._sums.table()
        whole = table[0]
        summary = (
            f"{whole['nll']:.4f} nats a token, {whole['accuracy']:.1%} of {whole['tokens']:,} tokens predicted, "
            f"entropy {whole['entropy']:.3f}"
        )
        return Taken(table, summary)

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Negative log-likelihood above and accuracy below, over the groups of positions."""
        figure = new_figure(6.4, 4.8)
        upper, lower = figure.subplots(2, 1, sharex=True)
        self._line(upper, rows, "nll", "−log p, nats a token", 1)
        self._line(lower, rows, "accuracy", "accuracy, %", 100)
        lower.set_xlabel("position of the predicted token", fontsize=9)
        return save(figure, path, title)

    def _line(self, axes: Axes, rows: Rows, column: str, label: str, factor: float) -> None:
        names = [row["positions"] for row in rows[1:]]
        values = [factor * row[column] for row in rows]
        axes.plot(names, values[1:], color=self._color, marker="o", markersize=4)
        axes.axhline(values[0], color=self._color, linewidth=0.8, linestyle=":", label="all tokens")
        axes.set_ylabel(label, fontsize=9)
        axes.legend(frameon=False, fontsize=8)
        finish(axes)
