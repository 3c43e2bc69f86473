"""The figure `random-context`: what the first half of a document is worth to the tokens of its second half.

Each packed document is cut between two sentences, and the tokens behind the cut are predicted twice: in their document, and with
the beginning of another document before them, on both sides. The two texts are alike in kind and, to a sentence, in length, so
that a model which does not fit short texts, as those of `context` are, is not taken for one that reads the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import datasets

from reluformer.analysis.colors import color_of_model
from reluformer.analysis.context import bounds, draw_gain, positions_table, sentences_of, token_nll
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken
from reluformer.configuration.errors import UserError

_OTHER = "nll_random"
_SIDES = ("input_ids", "labels")
DEFINITIONS = {
    "positions": "places of the tokens behind the cut of their packed document, from 1; `all`: of all tokens",
    "last": "the last of these places; null for all",
    "tokens": "how many tokens stand there, end tokens left out",
    "nll": "mean over them of −log p(token | the source document, the target tokens before it), in nats",
    _OTHER: "the same where another document begins before the cut, on both sides, and as long to a sentence",
    "gain": "nll_random − nll: what the first half of their own document is worth to them",
    "gain_error": "standard error of gain, the packed documents taken for independent of each other; null for a single one",
}


@dataclass(frozen=True)
class Crossing:
    """A packed document `at`, whose first `cut` sentences are replaced by the first `taken` of the packed document `other`."""

    at: int
    cut: int
    other: int
    taken: int


@dataclass
class RandomContext(Figure):
    """Likelihood of the second half of a document behind its own first half and behind that of another one."""

    batch_tokens: int

    name = "random-context"
    needs = TEXT
    of_documents = True
    definitions = DEFINITIONS

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
        crossed = [parts[crossing.other][: crossing.taken] + parts[crossing.at][crossing.cut :] for crossing in chosen]
        nll = [token_nll(subject.model, _joined(texts), self.batch_tokens) for texts in (own, crossed)]
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
        return Taken(table, summary, facts={"crossed_documents": len(chosen), "left_out": left_out}, notes=notes)

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Negative log-likelihood above, behind both beginnings, and what the own one is worth below."""
        labels = {"nll": "behind its own beginning", _OTHER: "behind that of another document"}
        return draw_gain(rows, path, title, labels, self._color, "position of the predicted token behind the cut")


def _parts(subject: Subject) -> list[list[dict[str, list[int]]]]:
    """The sentences of each packed document, encoded by themselves."""
    sentences = sentences_of(subject).to_list()
    starts = bounds(subject.documents)
    return [sentences[first:after] for first, after in pairwise(starts)]


def crossings(parts: list[list[dict[str, list[int]]]], names: list[str]) -> Iterator[Crossing]:
    """For each packed document the cut and the beginning to put there, where there is one.

    The cut is the last that leaves at most half of the target tokens before it, or that behind the first sentence. The other
    document is the next one, from the first again behind the last, that has another name and, on both sides, at least as many
    tokens as stand before the cut; of it, as many sentences are taken as have no more on either side, and at least one.
    """
    lengths = [[[len(sentence[side]) - 1 for sentence in of] for side in _SIDES] for of in parts]
    for at, (source, target) in enumerate(lengths):
        if len(target) < 2:
            continue
        cut = max(1, _fitting(target, sum(target) // 2))
        room = sum(source[:cut]), sum(target[:cut])
        for other in chain(range(at + 1, len(parts)), range(at)):
            if names[other] != names[at] and all(
                sum(of) >= most for of, most in zip(lengths[other], room, strict=True)
            ):
                taken = min(_fitting(of, most) for of, most in zip(lengths[other], room, strict=True))
                if taken:
                    yield Crossing(at, cut, other, taken)
                    break


def _fitting(lengths: list[int], most: int) -> int:
    """How many sentences, from the first, have no more than `most` tokens together."""
    count, tokens = 0, 0
    for length in lengths:
        tokens += length
        if tokens > most:
            break
        count += 1
    return count


def _joined(texts: list[list[dict[str, list[int]]]]) -> datasets.Dataset:
    """Each text as one pair: the tokens of its sentences, and one end token."""

    def joined(sentences: list[dict[str, list[int]]], side: str) -> list[int]:
        return [*chain.from_iterable(sentence[side][:-1] for sentence in sentences), sentences[-1][side][-1]]

    return datasets.Dataset.from_dict({side: [joined(sentences, side) for sentences in texts] for side in _SIDES})


FIGURE = RandomContext
