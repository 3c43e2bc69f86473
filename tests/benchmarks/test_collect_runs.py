import json
from pathlib import Path

import pytest

from reluformer.training.scoring.evaluation import write_translations


@pytest.fixture
def collect_runs(program, monkeypatch, tmp_path):
    module = program("text.collect_runs")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr(module, "TABLE", tmp_path / "benchmarks" / "RESULTS.md")
    return module


def fake_run(folder: Path, name: str, bleu: float, hypotheses: list[str]) -> Path:
    folder.mkdir()
    references = ["a small house stands there", "the dog runs through the wet grass", "two men play cards at a table"]
    (folder / "recipe.yaml").write_text(
        f"name: {name}\nmodel: {{preset: reluformer}}\nevaluation: {{splits: [test]}}\n"
    )
    record = {
        "recipe": name,
        "seed": 1,
        "command": f"reluformer train --config {name}",
        "date": "2026-01-02T00:00:00+00:00",
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "updates": 1200,
        "seconds": 60.0,
        "target_tokens_per_update": 4096.4,
        "target_tokens_per_second": 3000.2,
        "machine": {"cpu": "a CPU", "usable_cores": 2, "torch_threads": 1},
        "versions": {"torch": "1", "transformers": "2"},
    }
    (folder / "training_record.json").write_text(json.dumps(record))
    (folder / "evaluation.test.json").write_text(json.dumps({"moses_lowercase_bleu": bleu}))
    (folder / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": 5, "eval_dead_row_fraction": 0.25}]})
    )
    write_translations(folder / "translations.test.tsv", references, hypotheses, references)
    return folder


def test_runs_become_result_files_and_one_table(collect_runs, tmp_path, capsys):
    good = ["a small house stands there", "the dog runs through the grass", "two men play cards at a table"]
    bad = ["a house", "the dog runs", "two men play at a table"]
    folders = [fake_run(tmp_path / "one", "one", 41.234, good), fake_run(tmp_path / "two", "two", 12.5, bad)]
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "benchmarks/results/parity.json").write_text('{"models": []}')  # of another benchmark
    assert collect_runs.main([str(folder) for folder in folders]) == 0
    result = json.loads((tmp_path / "benchmarks/results/one-seed1.json").read_text())
    (comparison,) = result["compared_with"]
    assert comparison["with"] == "two" and comparison["difference"] > 20
    table = (tmp_path / "benchmarks/RESULTS.md").read_text()
    assert "| [one](results/one-seed1.json) | reluformer | 1 | 1,200 | 4,096 | 3,000 | 41.23 | 25.0 |" in table
    assert "exact match" not in table, "a column without figures is left out"
    assert "one against two: +" in table and "commit 0123456789ab" in table


def test_an_unfinished_run_is_refused_in_one_line(collect_runs, tmp_path, capsys):
    assert collect_runs.main([str(tmp_path)]) == 2
    assert "expected a finished run" in capsys.readouterr().err
