"""The figure `random-context`: what the first half of a document is worth to the tokens of its second half.

Each packed document is cut between two sentences, and the tokens behind the cut are predicted twice: in their document, and with
as many tokens of another document before them, on both sides. The two texts are alike in kind and in length, and no token has
another position, so that a model which does not fit short texts, as those of `context` are, or which goes by positions, is not
taken for one that reads the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path

import datasets

from reluformer.analysis.colors import color_of_model
from reluformer.analysis.context import draw_gain, positions_table, sentences_of, spans, token_nll
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken
from reluformer.configuration.errors import UserError

_OTHER = "nll_random"
_SIDES = ("input_ids", "labels")
_Sentences = list[dict[str, list[int]]]  # each encoded by itself, with its end token
DEFINITIONS = {
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


FIGURE = RandomContext
