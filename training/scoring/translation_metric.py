"""`score_translations` as a metric of the `evaluate` library."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate

from reluformer.training.scoring.metrics import score_translations


class TranslationMetric(evaluate.Metric):
    """`TranslationMetric().compute(predictions=…, references=…)`: those of [`score_translations`]."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="Scores of translations, with sacreBLEU's signatures.",
            citation="",
            inputs_description="predictions, references: lists of texts. language: of the target, for Moses' BLEU.",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: list[str], references: list[str], language: str | None = None) -> dict[str, Any]:
        return score_translations(predictions, references, language=language)
