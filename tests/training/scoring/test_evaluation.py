"""Evaluation: scores and files agree with the translations; samples are readable."""

import json

import datasets
import pytest

from reluformer.configuration.errors import UserError
from reluformer.training.scoring.evaluation import (
    evaluate,
    format_samples,
    read_translations,
    write_translations,
)
from reluformer.training.scoring.metrics import score_translations
from reluformer.training.translation import Translator

PAIRS = datasets.Dataset.from_dict(
    {"source": ["eins", "zwei\t2", "drei", "vier"], "target": ["one", "two\n2", "three", "four\\n"]}
)
HYPOTHESES = ["one", "two\n2", "Three", "\u2028 five"]


class Model:
    device = "cpu"


class FixedTranslator(Translator):
    """Translates by heart."""

    def __init__(self):
        self.model, self.num_beams, self.length_penalty, self.max_new_tokens, self.batch_tokens = (
            Model(),
            5,
            1.1,
            None,
            9,
        )
        self.long_sources, self.shortened, self.generation, self.compute = "error", [], {}, "float32"

    def finished(self, texts, progress=False):
        return enumerate(HYPOTHESES[list(PAIRS["source"]).index(text)] for text in texts)


def test_files_and_result_agree(tmp_path):
    record = {"command": "reluformer evaluate", "seed": 3}
    result = evaluate(FixedTranslator(), PAIRS, tmp_path, "validation", dataset_name="n", record=record)
    written = json.loads((tmp_path / "evaluation.validation.json").read_text(encoding="utf-8"))
    assert written == result
    assert result["exact_match"] == 50.0
    assert result["decoding"]["num_beams"] == 5 and result["decoding"]["length_penalty"] == 1.1
    assert (result["split"], result["dataset"], result["command"], result["seed"]) == (
        "validation",
        "n",
        "reluformer evaluate",
        3,
    )
    assert result["sentences"] == 4 and result["seconds"] >= 0 and result["sentences_per_second"] > 0
    rows = read_translations(tmp_path / "translations.validation.tsv")
    assert rows == list(zip(PAIRS["source"], HYPOTHESES, PAIRS["target"], strict=True))
    assert result["bleu"] == score_translations([row[1] for row in rows], [row[2] for row in rows])["bleu"]


def test_a_failure_leaves_the_translations_that_were_done(tmp_path, caplog):
    class FailingTranslator(FixedTranslator):
        def finished(self, texts, progress=False):
            yield 2, HYPOTHESES[2]
            yield 1, HYPOTHESES[1]
            raise MemoryError

    with pytest.raises(MemoryError):
        evaluate(FailingTranslator(), PAIRS, tmp_path)
    partial = tmp_path / "translations.test.tsv.partial"
    assert [row[1] for row in read_translations(partial)] == [HYPOTHESES[2], HYPOTHESES[1]]
    assert f"{partial} holds the translations that were done" in caplog.text
    evaluate(FixedTranslator(), PAIRS, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"evaluation.test.json", "translations.test.tsv"}


def test_where_no_bar_is_seen_lines_say_how_far_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("reluformer.training.scoring.evaluation._SECONDS_BETWEEN_LINES", -1.0)
    evaluate(FixedTranslator(), PAIRS, tmp_path)
    assert f"2 of {len(PAIRS)} translated · 0:00 left" in capsys.readouterr().out


def test_a_row_of_the_table_is_one_line(tmp_path):
    path = write_translations(tmp_path / "a.tsv", ["a\tb\r"], ["\\t"], ["x\ny"])
    assert path.read_bytes() == b"source\thypothesis\treference\na\\tb\\r\t\\\\t\tx\\ny\n"
    assert read_translations(path) == [("a\tb\r", "\\t", "x\ny")]


def test_another_table_is_refused_with_its_line(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("source\thypothesis\treference\na\tb\n")
    with pytest.raises(UserError, match="line 2"):
        read_translations(path)
    path.write_text("a\tb\tc\n")
    with pytest.raises(UserError, match="line 1"):
        read_translations(path)
    with pytest.raises(UserError, match="no such file"):
        read_translations(tmp_path / "b.tsv")


def test_samples_are_aligned_and_spread_over_the_corpus():
    rows = [(str(number),) * 3 for number in range(100)]
    shown = format_samples(rows, 4)
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("source")] == ["0", "25", "50", "75"]
    lines = format_samples([("eins " * 30, "one", "")], width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert all(line.index(line.split()[-1]) >= 13 for line in lines)
    assert lines[-1] == "reference    (empty)"
    assert format_samples(rows, 200).count("translation") == 100
