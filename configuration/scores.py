"""The scores of translations: what each is called and how it is computed. Whatever computes, draws or tells one reads
it here.

Which BLEU is which, from the strictest comparison to the oldest:

- `bleu`: sacreBLEU's default, case-sensitive, sacreBLEU's own 13a tokenisation of plain text. Figures of different
  papers may be compared when their signatures agree.
- `tokenized_lowercase_bleu`: the same with both sides lower-cased.
- `moses_lowercase_bleu`: both sides lower-cased, tokenised by Moses (`sacremoses`), then split at spaces. This is what
  older papers call "tokenised BLEU"; the published figures on lower-cased, Moses-tokenised Multi30k are of this kind.
- `tokenized_bleu`: of a corpus that Moses has tokenised already (`data.text: moses`), split at spaces as it stands. All
  other scores of such a corpus are of both sides detokenised, since 13a would cut `&apos;` into three tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Score:
    """A score of a whole corpus.

    name: its key in `evaluation.<split>.json`; the log of a training has it as `eval_<name>`.
    label: in a line for a person and in pictures. It says so if lower is better.
    title: on the card and in tables of results.
    hub_type: what the Hub calls such a metric.
    metric: class of `sacrebleu.metrics`, made with `options`. None is the share of translations equal to their
        reference.
    unit: after the value.
    of_documents: taken over whole original documents instead of the texts that were translated.
    moses: both sides are lower-cased and tokenised by Moses first, which needs to know their language.
    text: the one kind of text (`data.text` of a recipe) that has this score; None is both.
    cased: says nothing about a model whose tokenizer lower-cases, on texts that have capitals.
    in_training: taken at every evaluation during training, too.
    is_told: a recipe can have it as its headline, and the card tells it. Others are in the file of the evaluation
        alone.
    """

    name: str
    label: str
    title: str
    hub_type: str
    metric: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""
    of_documents: bool = False
    moses: bool = False
    text: Literal["plain", "moses"] | None = None
    cased: bool = True
    in_training: bool = False
    is_told: bool = True

    def value(self, scores: Mapping[str, Any]) -> str:
        """Its value among `scores`, for a person."""
        return f"{scores[self.name]:.2f} {self.unit}".rstrip()


# Where text looks tokenised, sacreBLEU would say so in three lines with each score of each evaluation; `metrics` says
# it once.
_SILENT = {"force": True}
_LOWERCASE = {"tokenize": "13a", "lowercase": True, **_SILENT}
_AT_SPACES = {"tokenize": "none", **_SILENT}
_LIST = (
    Score("bleu", "BLEU", "BLEU (sacreBLEU)", "bleu", "BLEU", _SILENT, in_training=True),
    Score(
        name="tokenized_lowercase_bleu",
        label="lower-cased BLEU",
        title="BLEU, lower-cased",
        hub_type="bleu",
        metric="BLEU",
        options=_LOWERCASE,
        cased=False,
        in_training=True,
    ),
    Score(
        name="moses_lowercase_bleu",
        label="Moses-tokenised lower-cased BLEU",
        title="BLEU, lower-cased, Moses-tokenised",
        hub_type="bleu",
        metric="BLEU",
        options=_AT_SPACES,
        moses=True,
        text="plain",
        cased=False,
    ),
    Score(
        name="tokenized_bleu",
        label="tokenised BLEU",
        title="BLEU, tokenised (tok:none)",
        hub_type="bleu",
        metric="BLEU",
        options=_AT_SPACES,
        text="moses",
        in_training=True,
    ),
    Score("chrf", "chrF", "chrF", "chrf", "CHRF", in_training=True),
    Score("exact_match", "exact match", "Exact match (%)", "exact_match", None, unit="%", in_training=True),
    Score("document_bleu", "BLEU", "BLEU over whole documents", "bleu", "BLEU", _SILENT, of_documents=True),
    Score("document_chrf", "chrF", "chrF over whole documents", "chrf", "CHRF", of_documents=True, is_told=False),
)
SCORES = {score.name: score for score in _LIST}
TOLD_SCORES = [score for score in _LIST if score.is_told]
SCORES_IN_TRAINING = [score for score in _LIST if score.in_training]
Headline = Literal[tuple(score.name for score in TOLD_SCORES)]
