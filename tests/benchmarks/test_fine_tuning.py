"""The curve of fine-tuning: what is trained, that the better rate is chosen on validation, and that nothing is trained
twice."""

import gzip
import json

import pytest

from benchmarks import fine_tuning


def test_the_table_has_the_chosen_rate_alone_and_both_seeds(tmp_path, monkeypatch):
    rows = [
        {"start": start, "pairs": 500, "rate": rate, "seed": seed, "chosen": rate == 2, "scores": scores}
        for start, scores in (
            ("base", {"test": 30.0, "tatoeba": 40.0}),
            ("new", {"test": 5.0, "tatoeba": 0.0}),
        )
        for rate, seed in ((1, 1), (2, 1), (2, 2))
    ]
    rows[2]["scores"] = {"test": 31.0, "tatoeba": 40.0}
    result = {"before": {"test": 20.0, "tatoeba": 50.0}, "updates": {"500": 100}, "rows": rows}
    (tmp_path / fine_tuning.RESULT).write_text(json.dumps(result), encoding="utf-8")
    monkeypatch.setattr(fine_tuning, "RESULTS", tmp_path)
    header, _, before, after = fine_tuning.scores_table().splitlines()
    assert header.count("captions") == 3 and header.count("Tatoeba") == 2
    assert before == "| none | 0 |  | 20.0 |  | 50.0 |  |"
    assert after == "| 500 | 100 | 5.0 (5.0, 5.0) | 30.5 (30.0, 31.0) |  | 40.0 (40.0, 40.0) |  |"


@pytest.mark.slow
def test_a_quick_run_trains_every_kind_once_and_keeps_its_scores(tmp_path, monkeypatch):
    sentences = {"de": "Ein Mann schläft in einem Zimmer {}.", "en": "A man sleeps in a room {}."}
    for name in ("multi30k/train", "multi30k/val", "multi30k/test2016", "tatoeba/val"):
        for language, sentence in sentences.items():
            path = tmp_path / "data" / f"{name}.{language}.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress("".join(f"{sentence.format(n)}\n" for n in range(30)).encode()))
    monkeypatch.setattr(fine_tuning, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(fine_tuning, "LORA_BATCH", 4)
    command = ["--quick", "--data", str(tmp_path / "data"), "--output", str(tmp_path)]
    assert fine_tuning.main(command) == 0
    result = json.loads((tmp_path / "fine-tuning-cpu.json").read_text(encoding="utf-8"))
    assert [(row["start"], row["seed"]) for row in result["rows"]] == [
        (start, seed) for start in ("base", "new", "lora") for seed in (1, 1, 2)
    ]
    assert result["before"].keys() == {"validation", "test", "tatoeba"}
    for start in ("base", "new", "lora"):
        first, second, again = (row for row in result["rows"] if row["start"] == start)
        assert [first["rate"], second["rate"]] == list(fine_tuning.RATES[start])
        assert again["rate"] == max((first, second), key=lambda row: row["scores"]["validation"])["rate"]
        assert again["chosen"] and first["chosen"] == (first["rate"] == again["rate"])
    monkeypatch.setattr(fine_tuning, "train_by_recipe", None)  # a second run must not need it
    monkeypatch.setattr(fine_tuning, "train_with_lora", None)
    monkeypatch.setattr(fine_tuning, "RUNS", tmp_path / "runs of another checkout")
    assert fine_tuning.main(command) == 0
    assert json.loads((tmp_path / fine_tuning.RESULT).read_text(encoding="utf-8"))["rows"] == result["rows"]
