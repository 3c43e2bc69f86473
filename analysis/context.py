"""What a document is worth to the prediction of its tokens: the analyses `context` and `random-context`.

Of `context`, each token of a packed document is predicted twice: in its document, and with its sentence alone. Of
`random-context`, each packed document is cut between two sentences; the tokens behind the cut are predicted in their document,
and with as many tokens of another document before them, on both sides: texts alike in kind and length, with every token at its
own position, so that a model which does not fit short texts is not taken for one that reads the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from reluformer.analysis.analyze import Measured, Rows, in_words
from reluformer.analysis.collection import IGNORED_LABEL, forward
from reluformer.analysis.drawing import color_of_model, finish, new_figure, save
from reluformer.analysis.inputs import Pair, Subject, pair_batches
from reluformer.analysis.likelihood import groups_of_positions
from reluformer.configuration.errors import UserError
from reluformer.training.data.encoding import token_ids

Sentences = list[Pair]  # each encoded by itself, with its end token


def context(subject: Subject) -> Measured:
    """Likelihood of the tokens of a document, in it and with their sentence alone."""
    parts = _parts(subject)
    within = [nll[:-1] for nll in token_nll(subject.model, subject.pairs)]
    alone = [nll[:-1] for nll in token_nll(subject.model, list(chain.from_iterable(parts)))]
    of_documents = [torch.cat(alone[first:after]) for first, after in pairwise([0, *accumulate(map(len, parts))])]
    table = gain_table(within, of_documents, "nll_alone")
    labels = {"nll": "in its document", "nll_alone": "its sentence alone"}
    where = "position of the predicted token in its document"
    summary = in_words(table, "nll", "nll_alone", "tokens")
    return Measured(table, summary, partial(_draw, table, labels, where, subject.model))


def token_nll(model: PreTrainedModel, pairs: list[Pair]) -> list[Tensor]:
    """−log p of each label of each pair, (labels,), the end token with them."""
    found: dict[int, Tensor] = {}
    for places, batch in pair_batches(model, pairs):
        logits, labels = forward(model, batch).logits.float(), batch.labels
        nll = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED_LABEL)
        rows = zip(places, nll.view_as(labels).double().cpu(), batch.real["decoder"].cpu(), strict=True)
        found.update((place, row[real]) for place, row, real in rows)
    return [found[place] for place in range(len(pairs))]


def _parts(subject: Subject) -> list[Sentences]:
    """The sentences of each packed document; those that packing left out are not among them."""
    packed, parts = subject.documents, []
    for first, number in zip(packed.pairs["first"], packed.pairs["sentences"], strict=True):
        encoded = token_ids(subject.tokenizer, packed.sentences[first : first + number])
        parts.append(list(zip(*encoded, strict=True)))
    return parts


def gain_table(within: list[Tensor], otherwise: list[Tensor], column: str) -> Rows:
    """One row for all tokens and one for each group of positions that has any: means over tokens, end tokens left out.

    gain: what the rest of the document is worth, `column` − nll. gain_error: its standard error, the packed documents taken for
    independent of each other; null for a single one.

    Args:
        within: −log p of the tokens of each packed document, (tokens,).
        otherwise: the same of the same tokens without what `gain` is the worth of. column: its name in the table.
    """
    document = torch.repeat_interleave(torch.tensor([len(nll) for nll in within]))
    place = torch.cat([torch.arange(1, len(nll) + 1) for nll in within])
    figures = torch.stack([torch.cat(within), torch.cat(otherwise)], dim=1)
    return [
        {**group, **_means(figures[inside], document[inside], column)} for group, inside in groups_of_positions(place)
    ]


def _means(figures: Tensor, document: Tensor, column: str) -> dict[str, int | float | None]:
    nll, otherwise = figures.mean(dim=0).tolist()
    gain, number = otherwise - nll, len(document.unique())
    # A ratio of sums over documents: their residual sums are independent, those of the tokens within one are not.
    residual = torch.bincount(document, weights=figures[:, 1] - figures[:, 0] - gain)
    error = None
    if number > 1:
        error = float((number / (number - 1) * (residual**2).sum()).sqrt() / len(document))
    return {"tokens": len(document), "nll": nll, column: otherwise, "gain": gain, "gain_error": error}


def _draw(rows: Rows, labels: dict[str, str], where: str, model: PreTrainedModel, path: Path, title: str) -> list[Path]:
    """Two columns of `gain_table` above, as `labels` names them, and their difference below. where: name of the axis."""
    figure, color = new_figure(6.4, 4.8), color_of_model(model.config)
    upper, lower = figure.subplots(2, 1, sharex=True)
    names = [row["positions"] for row in rows[1:]]
    for (column, label), style in zip(labels.items(), ("-", "--"), strict=True):
        upper.plot(names, [row[column] for row in rows[1:]], style, color=color, marker="o", markersize=4, label=label)
    gains, errors = ([row[column] or 0.0 for row in rows[1:]] for column in ("gain", "gain_error"))
    lower.errorbar(names, gains, errors, color=color, marker="o", markersize=4, capsize=2)
    lower.axhline(0, color="0.6", linewidth=0.8)
    upper.set_ylabel("−log p, nats a token", fontsize=9)
    lower.set_ylabel("gain, nats a token", fontsize=9)
    lower.set_xlabel(where, fontsize=9)
    upper.legend(frameon=False, fontsize=8)
    for axes in (upper, lower):
        finish(axes)
    return save(figure, path, title)


# random-context


class Crossing(NamedTuple):
    """The first `cut` sentences of the packed document `at` give way to the last tokens of the first `reach` sentences of the
    packed document `other`."""

    at: int
    cut: int
    other: int
    reach: int


def random_context(subject: Subject) -> Measured:
    """Likelihood of the second half of a document behind its own first half and behind that of another one."""
    parts = _parts(subject)
    chosen = list(crossings(parts, subject.documents.pairs["document"][:]))
    if not chosen:
        raise UserError(
            f"random-context: none of the {len(parts)} packed documents has two sentences and another document that is as "
            "long as its first half; give more documents, or a larger --max_length"
        )
    own = [_joined(parts[each.at]) for each in chosen]
    crossed = [_crossed(parts[each.at], parts[each.other], each) for each in chosen]
    # of each document, the tokens behind the cut without the end token
    behind = [sum(len(labels) - 1 for _, labels in parts[each.at][each.cut :]) for each in chosen]
    within, random = (
        [nll[-1 - number : -1] for nll, number in zip(token_nll(subject.model, pairs), behind, strict=True)]
        for pairs in (own, crossed)
    )
    table = gain_table(within, random, "nll_random")
    labels = {"nll": "behind its own beginning", "nll_random": "behind that of another document"}
    draw = partial(_draw, table, labels, "position of the predicted token behind the cut", subject.model)
    others, left_out = len({each.other for each in chosen}), len(parts) - len(chosen)
    facts = {"crossed_documents": len(chosen), "crossed_with": others, "left_out": left_out}
    notes = [f"random-context: {left_out} of {len(parts)} packed documents were left out"] if left_out else []
    return Measured(table, in_words(table, "nll", "nll_random", "tokens"), draw, facts, notes)


def crossings(parts: list[Sentences], names: list[str]) -> Iterator[Crossing]:
    """For each packed document, where there is one, another of another name that takes the place of its beginning.

    The cut is the last that leaves at most half of the target tokens before it, or that behind the first sentence. The other
    document has on both sides at least as many tokens as stand before the cut; its fewest sentences are read that have them. The
    others take turns: each is looked for behind the one that was found last, and behind the last from the first again, so that
    a few long documents, packed in many pieces, do not lend all the others one and the same beginning.
    """
    turn = 0
    lengths = [[[len(sentence[side]) - 1 for sentence in of] for side in (0, 1)] for of in parts]
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


def _crossed(own: Sentences, other: Sentences, crossing: Crossing) -> Pair:
    """The sentences behind the cut, and before them, as if it were one, the tokens of the other document."""
    before, foreign = _joined(own[: crossing.cut]), _joined(other[: crossing.reach])
    beginning = tuple(theirs[-len(ours) :] for theirs, ours in zip(foreign, before, strict=True))
    return _joined([beginning, *own[crossing.cut :]])


def _joined(sentences: Sentences) -> Pair:
    """Their tokens in a row, and one end token."""
    source, target = (
        [*chain.from_iterable(sentence[side][:-1] for sentence in sentences), sentences[-1][side][-1]]
        for side in (0, 1)
    )
    return source, target
