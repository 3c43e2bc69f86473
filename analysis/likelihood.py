"""How likely a model holds the given text: the analyses `likelihood`, `context` and `random-context`.

Plain negative log-likelihood: the loss of a training with label smoothing is another number, and ranks models
differently.

Of `context`, each token of a packed document is predicted twice: in its document, and with its sentence alone. Of
`random-context`, each packed document is cut between two sentences; the tokens after the cut are predicted in their
document, and with as many tokens of another document before them, on both sides: texts alike in kind and length, with
every token at its own position, so that a model which does not fit short texts is not taken for one that reads the
document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from reluformer.analysis.analyze import AnalysisResult, Rows, in_words
from reluformer.analysis.collection import ALL, IGNORED_LABEL, forward
from reluformer.analysis.drawing import color_of_model, draw_positions
from reluformer.analysis.inputs import Pair, Subject, pair_batches
from reluformer.configuration.errors import UserError
from reluformer.training.data.encoding import token_ids

Sentences = list[Pair]  # each encoded by itself, with its end token
_PANELS = {"nats a token": {"nll": "−log p"}, "share of the tokens": {"accuracy": "accuracy"}}


def likelihood(subject: Subject) -> AnalysisResult:
    """Plain likelihood and accuracy of the given text by position."""
    outputs = ((batch.labels, forward(subject.model, batch).logits) for batch in subject.batches())
    table = likelihood_table(outputs)
    draw = partial(draw_positions, table, _PANELS, color_of_model(subject.model.config), "position of the token")
    return AnalysisResult(table, in_words(table, "nll", "accuracy", "tokens"), draw)


def likelihood_table(outputs: Iterable[tuple[Tensor, Tensor]]) -> Rows:
    """One row for all tokens and one for each group of positions that has any: means over the predicted tokens.

    nll: −log p of the token, in nats, without label smoothing. accuracy: whether it has the highest probability.

    Args:
        outputs: labels (batch, length), -100 for none, and logits (batch, length, vocabulary).

    Raises:
        UserError: no token, or a likelihood that is no number.
    """
    positions, nll, right = [], [], []
    for labels, logits in outputs:
        real = labels != IGNORED_LABEL
        wanted, predicted = labels[real], logits[real].float()
        positions.append(real.nonzero()[:, 1].cpu() + 1)
        nll.append(cross_entropy(predicted, wanted, reduction="none").double().cpu())
        right.append((predicted.argmax(dim=-1) == wanted).double().cpu())
    figures = {"nll": torch.cat(nll), "accuracy": torch.cat(right)}
    table = [
        {**group, "tokens": int(inside.sum()), **{name: float(each[inside].mean()) for name, each in figures.items()}}
        for group, inside in groups_of_positions(torch.cat(positions))
    ]
    require_number("likelihood", table[0]["nll"])
    return table


def require_number(what: str, cross_entropy: float) -> None:
    """Raises `UserError` for a cross-entropy of a model that is NaN, as of no token, or infinity."""
    if not math.isfinite(cross_entropy):
        raise UserError(
            f"{what}: the cross-entropy of the model is {cross_entropy}; it must be a number. Does the text belong to "
            "the model, and has it two tokens?"
        )


def groups_of_positions(position: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """All tokens, then each group of positions that has any, 1, 2, 3 to 4, 5 to 8, …: its columns, and which tokens are
    in it.

    position: (tokens,), from 1.
    """
    yield {"positions": ALL, "last": None}, torch.ones_like(position, dtype=torch.bool)
    lasts = 2 ** torch.arange(24)
    group = torch.bucketize(position, lasts)
    for number in group.unique():
        first, last = int(lasts[number - 1]) + 1 if number else 1, int(lasts[number])
        yield {"positions": f"{first}-{last}" if first < last else str(first), "last": last}, group == number


# context


def context(subject: Subject) -> AnalysisResult:
    """Likelihood of the tokens of a document, in it and with their sentence alone."""
    parts = _parts(subject)
    within = token_nll(subject.model, subject.pairs)
    alone = token_nll(subject.model, list(chain.from_iterable(parts)))
    of_documents = [torch.cat(alone[first:after]) for first, after in pairwise([0, *accumulate(map(len, parts))])]
    labels = {"nll": "in its document", "nll_alone": "its sentence alone"}
    return _measured(subject, within, of_documents, labels, "position of the predicted token in its document")


def token_nll(model: PreTrainedModel, pairs: list[Pair]) -> list[Tensor]:
    """−log p of each label of each pair but its end token, (labels - 1,)."""
    nll_by_index: dict[int, Tensor] = {}
    for indices, batch in pair_batches(model, pairs):
        logits, labels = forward(model, batch).logits.float(), batch.labels
        nll = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED_LABEL)
        rows = zip(indices, nll.view_as(labels).double().cpu(), batch.real["decoder"].cpu(), strict=True)
        nll_by_index.update((index, row[real][:-1]) for index, row, real in rows)
    return [nll_by_index[index] for index in range(len(pairs))]


def _parts(subject: Subject) -> list[Sentences]:
    """The sentences of each packed document; those that packing left out are not among them."""
    packed, parts = subject.documents, []
    for first, number in zip(packed.pairs["first"], packed.pairs["sentences"], strict=True):
        encoded = token_ids(subject.tokenizer, packed.sentences[first : first + number])
        parts.append(list(zip(*encoded, strict=True)))
    return parts


def _measured(
    subject: Subject, within: list[Tensor], otherwise: list[Tensor], labels: dict[str, str], where: str
) -> AnalysisResult:
    """labels: of the two columns, by name. where: name of the axis of positions."""
    _, column = labels
    table = gain_table(within, otherwise, column)
    panels = {"−log p, nats a token": labels, "gain, nats a token": {"gain": "± standard error"}}
    draw = partial(draw_positions, table, panels, color_of_model(subject.model.config), where)
    return AnalysisResult(table, in_words(table, *labels, "tokens"), draw)


def gain_table(within: list[Tensor], otherwise: list[Tensor], column: str) -> Rows:
    """One row for all tokens and one for each group of positions that has any: means over tokens, end tokens left out.

    gain: what the rest of the document is worth, `column` − nll. gain_error: its standard error, the packed documents
    taken for independent of each other; null for a single one.

    Args:
        within: −log p of the tokens of each packed document, (tokens,).
        otherwise: the same of the same tokens without what `gain` is the worth of. column: its name in the table.
    """
    document = torch.repeat_interleave(torch.tensor([len(nll) for nll in within]))
    position = torch.cat([torch.arange(1, len(nll) + 1) for nll in within])
    figures = torch.stack([torch.cat(within), torch.cat(otherwise)], dim=1)
    return [
        {**group, **_means(figures[inside], document[inside], column)}
        for group, inside in groups_of_positions(position)
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


# random-context


def random_context(subject: Subject) -> AnalysisResult:
    """Likelihood of the second half of a document after its own first half and after the end of another one."""
    parts = _parts(subject)
    chosen = list(crossings(parts, subject.documents.pairs["document"][:]))
    if not chosen:
        raise UserError(
            f"random-context: none of the {len(parts)} packed documents has two sentences and another document that is "
            "as long as its first half; give more documents, or a larger --max_length"
        )
    own = [_joined(parts[at]) for at, _, _ in chosen]
    crossed = [_crossed(parts[at], parts[other], cut) for at, cut, other in chosen]
    behind = [sum(len(labels) - 1 for _, labels in parts[at][cut:]) for at, cut, _ in chosen]
    within, random = (
        [nll[-number:] for nll, number in zip(token_nll(subject.model, pairs), behind, strict=True)]
        for pairs in (own, crossed)
    )
    labels = {"nll": "behind its own beginning", "nll_random": "behind another document"}
    measured = _measured(subject, within, random, labels, "position of the predicted token behind the cut")
    return replace(measured, notes=[f"random-context reads {len(chosen)} of {len(parts)} packed documents"])


def crossings(parts: list[Sentences], names: list[str]) -> Iterator[tuple[int, int, int]]:
    """For each packed document, where there is one, another of another name that takes the place of its beginning.

    (at, cut, other): the first `cut` sentences of the document `at` give way to the last tokens of the document
    `other`.

    The cut is the last that leaves at most half of the target tokens before it, or that after the first sentence. The
    other document has on both sides at least as many tokens as stand before the cut. The others take turns: each is
    looked for after the one that was found last, and after the last from the first again, so that a few long
    documents, packed in many pieces, do not lend all the others one and the same beginning.
    """
    turn = 0
    lengths = [[[len(ids) - 1 for ids in side] for side in zip(*sentences, strict=True)] for sentences in parts]
    for at, (source, target) in enumerate(lengths):
        if len(target) < 2:
            continue
        cut = max(1, sum(tokens <= sum(target) // 2 for tokens in accumulate(target)))
        needed = sum(source[:cut]), sum(target[:cut])
        for other in chain(range(turn, len(parts)), range(turn)):
            fits = all(sum(side) >= least for side, least in zip(lengths[other], needed, strict=True))
            if names[other] != names[at] and fits:
                turn = other + 1
                yield at, cut, other
                break


def _crossed(own: Sentences, other: Sentences, cut: int) -> Pair:
    """The sentences after the cut, and before them, as if it were one, the last tokens of the other document."""
    before, foreign = _joined(own[:cut]), _joined(other)
    beginning = tuple(theirs[-len(ours) :] for theirs, ours in zip(foreign, before, strict=True))
    return _joined([beginning, *own[cut:]])


def _joined(sentences: Sentences) -> Pair:
    """Their tokens in a row, and one end token."""
    source, target = (
        [*chain.from_iterable(ids[:-1] for ids in side), side[-1][-1]] for side in zip(*sentences, strict=True)
    )
    return source, target
