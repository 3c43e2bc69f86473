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


def test_the_better_rate_on_validation_is_trained_with_the_second_seed(monkeypatch):
    scores = {0.0005: {"validation": 2.0, "test": 1.0}, 0.001: {"validation": 1.0, "test": 2.0}}
    monkeypatch.setattr(
        fine_tuning,
        "run",
        lambda start, pairs, updates, rate, seed, recipe, texts: {"rate": rate, "seed": seed, "scores": scores[rate]},
    )
    rows = fine_tuning.runs_of("base", 500, 100, None, {})
    assert [(row["rate"], row["seed"], row["chosen"]) for row in rows] == [
        (0.0005, 1, True),
        (0.001, 1, False),
        (0.0005, 2, True),
    ]


@pytest.fixture
def corpora(tmp_path, monkeypatch):
    """Multi30k and Tatoeba of 30 numbered sentences each; runs go into the folder, too."""
    monkeypatch.setattr(fine_tuning, "RUNS", tmp_path / "runs")
    for name in ("multi30k/train", "multi30k/val", "multi30k/test2016", "tatoeba/val"):
        for language in fine_tuning.LANGUAGES:
            path = tmp_path / f"{name}.{language}.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress("".join(f"{name} {language} {n}\n" for n in range(30)).encode()))
    return tmp_path


def test_of_tatoeba_some_pairs_are_scored_and_of_the_captions_all(corpora, monkeypatch):
    monkeypatch.setattr(fine_tuning, "TATOEBA_PAIRS", 7)
    texts = fine_tuning.read_texts(corpora, None)
    assert {name: [len(side) for side in sides] for name, sides in texts.items()} == {
        "validation": [30, 30],
        "test": [30, 30],
        "tatoeba": [7, 7],
    }
    assert [sides[0][0] for sides in texts.values()] == [
        "multi30k/val de 0",
        "multi30k/test2016 de 0",
        "tatoeba/val de 0",
    ]


def test_only_the_training_split_is_shortened_to_so_many_pairs(corpora, monkeypatch):
    asked = []
    monkeypatch.setattr(fine_tuning, "reluformer", lambda *arguments: asked.append(arguments))
    for start in ("base", "new"):
        fine_tuning.write_recipe(start, 5, corpora)
    folder = corpora / "runs" / "5"
    lines = {path.name: path.read_text(encoding="utf-8").splitlines() for path in folder.iterdir()}
    assert {name: len(of_file) for name, of_file in lines.items()} == {
        "train.de": 5,
        "train.en": 5,
        "val.de": 30,
        "val.en": 30,
    }
    assert lines["train.en"][-1] == "multi30k/train en 4"
    from_base, from_new = asked
    assert from_base[-2:] == ("--base", fine_tuning.BASE) and "--base" not in from_new
    files = [str(folder / name) for name in ("train.de", "train.en", "val.de", "val.en")]
    assert [word for word in from_new if word in files] == files


def test_a_training_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(fine_tuning, "reluformer", lambda *arguments: asked.append(arguments))
    for _ in range(2):
        fine_tuning.train_by_recipe(tmp_path / "run", tmp_path / "base.yaml", 100, 0.001, 1)
        (tmp_path / "run/checkpoint-50").mkdir(parents=True, exist_ok=True)
    anew, further = asked
    assert anew == (*further, "--overwrite")


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
