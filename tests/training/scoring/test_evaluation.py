"""Evaluation: scores and files agree with the translations; samples are readable."""

import json
import time
from types import SimpleNamespace

import datasets

from reluformer.training.scoring.evaluation import evaluate, format_samples, read_translations
from reluformer.training.scoring.metrics import score_translations

PAIRS = datasets.Dataset.from_dict(
    {"source": ["eins", "zwei\t2", "drei\r3", "vier " * 30_000], "target": ["one", "two\n2", "three", "four\\n"]}
)
HYPOTHESES = ["one", "two\n2", "Three", "\u2028 five"]


class ByHeart(SimpleNamespace):
    """In place of a translator."""

    def __call__(self, texts, progress=False):
        return [HYPOTHESES[list(PAIRS["source"]).index(text)] for text in texts]


def test_files_and_result_agree(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", iter((10.0, 11.5)).__next__)
    translator = ByHeart(model=SimpleNamespace(device="cpu"), decoding={"num_beams": 5}, shortened=[2])
    record = {"command": "reluformer evaluate", "seed": 3}
    result = evaluate(translator, PAIRS, tmp_path, "validation", record=record)
    assert json.loads((tmp_path / "evaluation.validation.json").read_text(encoding="utf-8")) == result
    assert result["exact_match"] == 50.0 and result["sentences"] == 4
    expected = {"split": "validation", **record, "decoding": {"num_beams": 5}, "shortened_sources": [2]}
    assert expected.items() <= result.items()
    assert (result["seconds"], result["sentences_per_second"]) == (1.5, 2.67)
    rows = read_translations(tmp_path / "translations.validation.tsv")
    sources = [source.replace("\r", " ") for source in PAIRS["source"]]
    assert rows == list(zip(sources, HYPOTHESES, PAIRS["target"], strict=True))
    assert result["bleu"] == score_translations([row[1] for row in rows], [row[2] for row in rows])["bleu"]


def test_samples_are_aligned_and_spread_over_the_corpus():
    rows = [(str(number),) * 3 for number in range(100)]
    shown = format_samples(rows, 4)
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("source")] == ["0", "25", "50", "75"]
    assert format_samples(rows, 200).count("translation") == 100
