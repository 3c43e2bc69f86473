"""Translating validation pairs in the middle of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.configuration.scores import SCORES_IN_TRAINING
from reluformer.training.scoring.metrics import score_translations
from reluformer.training.translation import Translator


@dataclass(frozen=True)
class ValidationTranslation:
    """Translates and scores a fixed set of pairs, each process its share.

    Args:
        tokenizer: of the model.
        sources: plain text.
        references: plain text, as many.
        num_beams: width of the beam.
        length_penalty: see `Translator`.
        batch_tokens: see `Translator`.
        language: see `score_translations`; none for plain text, since Moses takes its time.
        text: likewise.
        cased: False leaves out the scores that say nothing of a model whose tokenizer lower-cases.
    """

    tokenizer: PreTrainedTokenizerBase
    sources: Sequence[str]
    references: Sequence[str]
    num_beams: int
    length_penalty: float
    batch_tokens: int
    language: str | None = None
    text: Literal["plain", "moses"] = "plain"
    cased: bool = True

    def __call__(self, model: PreTrainedModel, process_index: int = 0, processes: int = 1) -> dict[str, float]:
        """Scores of `model`, from 0 to 100, the same on every process; every process must call this."""
        translator = Translator(
            model,
            self.tokenizer,
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            batch_tokens=self.batch_tokens,
        )
        mine = range(process_index, len(self.sources), processes)
        translations = translator([self.sources[index] for index in mine])
        if processes > 1:
            gathered = dict(gather_object(list(zip(mine, translations, strict=True))))
            translations = [gathered[index] for index in range(len(self.sources))]
        scores = score_translations(translations, self.references, language=self.language, text=self.text)
        wanted = [score.name for score in SCORES_IN_TRAINING if self.cased or not score.cased]
        return {name: scores[name] for name in wanted if name in scores}
