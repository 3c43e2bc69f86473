"""How likely a model holds the given text, by position: `likelihood`, and of documents `context` and `random-context`.

Plain negative log-likelihood: the loss of a training with label smoothing is another number, and ranks models differently. Of
`context`, each token of a packed document is predicted twice: in its document, and with its sentence alone. Of `random-context`,
each packed document is cut between two sentences, and the tokens behind the cut are predicted in their document, and with as many
tokens of another document before them, on both sides: texts alike in kind and length, with every token at its own position, so
that a model which does not fit short texts is not taken for one that reads the document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path

import datasets
import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from reluformer.analysis.collection import ALL, IGNORED_LABEL, AnyBatch, eager, forward
from reluformer.analysis.drawing import color_of_model, finish, new_figure, save
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken, Watch
from reluformer.analysis.texts import numbered_batches
from reluformer.configuration.errors import UserError
from reluformer.training.data.documents import PackedDocuments

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


CONTEXT_DEFINITIONS = {
    "positions": "places of the tokens in the target side of their packed document, from 1; `all`: of all tokens",
    "last": "the last of these places; null for all",
    "tokens": "how many tokens stand there; end tokens are left out, since a sentence has one only where it is alone",
    "nll": "mean over them of −log p(token | the source document, the target tokens before it), in nats",
    "nll_alone": "the same of the same tokens where the model is given the token's sentence alone, on both sides",
    "gain": "nll_alone − nll: what the rest of the document is worth",
    "gain_error": "standard error of gain, the packed documents taken for independent of each other; null for a single one",
}


@dataclass
class Context(Figure):
    """Likelihood of the tokens of a document, in it and with their sentence alone."""

    batch_tokens: int

    name = "context"
    needs = TEXT
    of_documents = True
    definitions = CONTEXT_DEFINITIONS

    def take(self, subject: Subject) -> Taken:
        self._color = color_of_model(subject.model.config)
        within, alone = (
            [nll[:-1] for nll in token_nll(subject.model, pairs, self.batch_tokens)]
            for pairs in (subject.pairs, sentences_of(subject))
        )
        of_documents = [torch.cat(alone[first:after]) for first, after in spans(subject.documents)]
        table = positions_table(within, of_documents, "nll_alone")
        whole = table[0]
        summary = (
            f"{whole['nll']:.4f} nats a token in its document, {whole['nll_alone']:.4f} with its sentence alone, "
            f"{whole['tokens']:,} tokens"
        )
        return Taken(table, summary)

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Negative log-likelihood above, in the document and alone, and what the document is worth below."""
        labels = {"nll": "in its document", "nll_alone": "its sentence alone"}
        return draw_gain(rows, path, title, labels, self._color, "position of the predicted token in its document")


def token_nll(model: PreTrainedModel, pairs: datasets.Dataset, batch_tokens: int) -> list[Tensor]:
    """−log p of each label of each pair, (labels,), the end token with them."""
    found: dict[int, Tensor] = {}
    with eager(model), torch.inference_mode():
        for places, batch in numbered_batches(pairs, model.device, batch_tokens=batch_tokens):
            logits, labels = forward(model, batch).logits.float(), batch.labels
            nll = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED_LABEL)
            rows = zip(places, nll.view_as(labels).double().cpu(), batch.target_mask.cpu(), strict=True)
            found.update((place, row[real]) for place, row, real in rows)
    return [found[place] for place in range(len(pairs))]


def sentences_of(subject: Subject) -> datasets.Dataset:
    """The sentences of the packed documents, in order, each encoded by itself; those that packing left out are not among them."""
    packed = subject.documents
    counts = zip(packed.pairs["first"], packed.pairs["sentences"], strict=True)
    chosen = packed.sentences.select([first + place for first, number in counts for place in range(number)])
    options = {"verbose": False, "return_attention_mask": False}
    sources = subject.tokenizer(text=list(chosen["source"]), **options)["input_ids"]
    targets = subject.tokenizer(text_target=list(chosen["target"]), **options)["input_ids"]
    return datasets.Dataset.from_dict({"input_ids": sources, "labels": targets})


def spans(packed: PackedDocuments) -> list[tuple[int, int]]:
    """The sentences of each packed document among all that are packed, as half-open ranges."""
    return list(pairwise([0, *torch.tensor(packed.pairs["sentences"][:]).cumsum(0).tolist()]))


def positions_table(within: list[Tensor], otherwise: list[Tensor], column: str) -> Rows:
    """One row for all tokens and one for each group of positions that has any; columns as in `CONTEXT_DEFINITIONS`.

    Args:
        within: −log p of the tokens of each packed document, (tokens,).
        otherwise: the same of the same tokens without what `gain` is the worth of. column: its name in the table.
    """
    document = torch.repeat_interleave(torch.tensor([len(nll) for nll in within]))
    place = torch.cat([torch.arange(1, len(nll) + 1) for nll in within])
    group, figures = torch.bucketize(place, LAST_PLACES), torch.stack([torch.cat(within), torch.cat(otherwise)], dim=1)
    rows = [{"positions": ALL, "last": None, **_means(figures, document, column)}]
    for each in group.unique():
        chosen = group == each
        means = _means(figures[chosen], document[chosen], column)
        rows.append({"positions": positions_of(int(each)), "last": int(LAST_PLACES[each]), **means})
    return rows


def _means(figures: Tensor, document: Tensor, column: str) -> dict[str, int | float | None]:
    nll, otherwise = figures.mean(dim=0).tolist()
    gain = otherwise - nll
    # A ratio of sums over documents: their residual sums are independent, those of the tokens within one are not.
    residual = torch.bincount(document, weights=figures[:, 1] - figures[:, 0] - gain)
    number = len(document.unique())
    scale = number / (number - 1) if number > 1 else None
    error = None if scale is None else float((scale * (residual**2).sum()).sqrt() / len(document))
    return {
        "tokens": len(document),
        "nll": nll,
        column: otherwise,
        "gain": gain,
        "gain_error": error,
    }


def draw_gain(rows: Rows, path: Path, title: str, labels: dict[str, str], color: str, where: str) -> Path:
    """Two columns of `positions_table` above, as `labels` names them, and their difference below. where: name of the axis."""
    figure = new_figure(6.4, 4.8)
    upper, lower = figure.subplots(2, 1, sharex=True)
    names = [row["positions"] for row in rows[1:]]
    for (column, label), style in zip(labels.items(), ("-", "--"), strict=True):
        upper.plot(names, [row[column] for row in rows[1:]], style, color=color, marker="o", markersize=4, label=label)
    gains, errors = ([row[column] for row in rows[1:]] for column in ("gain", "gain_error"))
    lower.errorbar(names, gains, [error or 0.0 for error in errors], color=color, marker="o", markersize=4, capsize=2)
    lower.axhline(0, color="0.6", linewidth=0.8)
    upper.set_ylabel("−log p, nats a token", fontsize=9)
    lower.set_ylabel("gain, nats a token", fontsize=9)
    lower.set_xlabel(where, fontsize=9)
    upper.legend(frameon=False, fontsize=8)
    for axes in (upper, lower):
        finish(axes)
    return save(figure, path, title)


# random-context

_OTHER = "nll_random"
_SIDES = ("input_ids", "labels")
_Sentences = list[dict[str, list[int]]]  # each encoded by itself, with its end token
RANDOM_DEFINITIONS = {
    "positions": "places of the tokens behind the cut of their packed document, from 1; `all`: of all tokens",
    "last": "the last of these places; null for all",
    "tokens": "how many tokens stand there, end tokens left out",
    "nll": "mean over them of −log p(token | the source document, the target tokens before it), in nats",
    _OTHER: "the same where as many tokens of another document stand before the cut, on both sides",
    "gain": "nll_random − nll: what the first half of their own document is worth to them",
    "gain_error": "standard error of gain, the packed documents taken for independent of each other; null for a single one",
}


@dataclass(frozen=True)
class Crossing:
    """The first `cut` sentences of the packed document `at` give way to the last tokens of the first `reach` sentences of the
    packed document `other`."""

    at: int
    cut: int
    other: int
    reach: int


@dataclass
class RandomContext(Figure):
    """Likelihood of the second half of a document behind its own first half and behind that of another one."""

    batch_tokens: int

    name = "random-context"
    needs = TEXT
    of_documents = True
    definitions = RANDOM_DEFINITIONS

    def take(self, subject: Subject) -> Taken:
        self._color = color_of_model(subject.model.config)
        parts = _parts(subject)
        chosen = list(crossings(parts, subject.documents.pairs["document"][:]))
        if not chosen:
            raise UserError(
                f"{self.name}: none of the {len(parts)} packed documents has two sentences and another document that is as long "
                "as its first half; give more documents, or a larger --max_length"
            )
        own = [parts[crossing.at] for crossing in chosen]
        crossed = [_crossed(parts[crossing.at], parts[crossing.other], crossing) for crossing in chosen]
        pairs = [datasets.Dataset.from_list([_pair(sentences) for sentences in texts]) for texts in (own, crossed)]
        nll = [token_nll(subject.model, each, self.batch_tokens) for each in pairs]
        # of each document, the tokens behind the cut without the end token
        behind = [sum(len(sentence["labels"]) - 1 for sentence in parts[each.at][each.cut :]) for each in chosen]
        within, random = ([of[-1 - number : -1] for of, number in zip(side, behind, strict=True)] for side in nll)
        table = positions_table(within, random, _OTHER)
        whole = table[0]
        summary = (
            f"{whole['nll']:.4f} nats a token behind the first half of its document, {whole[_OTHER]:.4f} behind that of another "
            f"one, {whole['tokens']:,} tokens"
        )
        left_out = len(parts) - len(chosen)
        notes = [f"{self.name}: {left_out} of {len(parts)} packed documents were left out"] if left_out else []
        others = len({each.other for each in chosen})
        facts = {"crossed_documents": len(chosen), "crossed_with": others, "left_out": left_out}
        return Taken(table, summary, facts=facts, notes=notes)

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Negative log-likelihood above, behind both beginnings, and what the own one is worth below."""
        labels = {"nll": "behind its own beginning", _OTHER: "behind that of another document"}
        return draw_gain(rows, path, title, labels, self._color, "position of the predicted token behind the cut")


def _parts(subject: Subject) -> list[_Sentences]:
    """The sentences of each packed document."""
    sentences = sentences_of(subject).to_list()
    return [sentences[first:after] for first, after in spans(subject.documents)]


def crossings(parts: list[_Sentences], names: list[str]) -> Iterator[Crossing]:
    """For each packed document, where there is one, another of another name that takes the place of its beginning.

    The cut is the last that leaves at most half of the target tokens before it, or that behind the first sentence. The other
    document has on both sides at least as many tokens as stand before the cut; its fewest sentences are read that have them. The
    others take turns: each is looked for behind the one that was found last, and behind the last from the first again, so that
    a few long documents, packed in many pieces, do not lend all the others one and the same beginning.
    """
    turn = 0
    lengths = [[[len(sentence[side]) - 1 for sentence in of] for side in _SIDES] for of in parts]
    for at, (source, target) in enumerate(lengths):
        if len(target) < 2:
            continue
        cut = max(1, _fitting(target, sum(target) // 2))
        needed = sum(source[:cut]), sum(target[:cut])
        for other in chain(range(turn, len(parts)), range(turn)):
            sides = list(zip(lengths[other], needed, strict=True))
            if names[other] != names[at] and all(sum(of) >= least for of, least in sides):
                turn = other + 1
                yield Crossing(at, cut, other, reach=max(_fitting(of, least - 1) + 1 for of, least in sides))
                break


def _fitting(lengths: list[int], most: int) -> int:
    """How many sentences, from the first, have no more than `most` tokens together."""
    return sum(tokens <= most for tokens in accumulate(lengths))


def _crossed(own: _Sentences, other: _Sentences, crossing: Crossing) -> _Sentences:
    """The sentences behind the cut, and before them, as if it were one, the tokens of the other document."""
    before, foreign = _pair(own[: crossing.cut]), _pair(other[: crossing.reach])
    return [{side: foreign[side][-len(before[side]) :] for side in _SIDES}, *own[crossing.cut :]]


def _pair(sentences: _Sentences) -> dict[str, list[int]]:
    """Their tokens in a row, and one end token."""
    return {
        side: [*chain.from_iterable(sentence[side][:-1] for sentence in sentences), sentences[-1][side][-1]]
        for side in _SIDES
    }
