"""`score_translations` as a metric of the `evaluate` library: `evaluate.load` takes the path of this file, offline.

`reluformer.training.scoring.metrics.load_metric()` does that.
"""

from typing import Any

import datasets
import evaluate

from reluformer.configuration.scores import SCORES
from reluformer.training.scoring.metrics import score_translations

_DESCRIPTION = (
    f"{', '.join(score.title for score in SCORES.values() if not score.of_documents)} of translations, with signatures."
)
_INPUTS = (
    "predictions: list of translations (str). references: list of as many references (str). language: ISO 639-1 code "
    "of the target language, for the additional Moses-tokenised lower-cased BLEU (needs sacremoses)."
)
_CITATION = """@inproceedings{post-2018-call,
  title = {A Call for Clarity in Reporting {BLEU} Scores},
  author = {Post, Matt},
  booktitle = {Proceedings of the Third Conference on Machine Translation: Research Papers},
  year = {2018},
  url = {https://aclanthology.org/W18-6319},
}"""


class TranslationMetric(evaluate.Metric):
    """`compute(predictions=…, references=…, language=None)`; results as of `score_translations`."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: list[str], references: list[str], language: str | None = None) -> dict[str, Any]:
        return score_translations(predictions, references, language=language)
