"""The page of other models: what is run and recorded, and that the committed page is that of the committed results."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.text import other_models
from benchmarks.text.other_models import KINDS, PAGE, SEEDS, TASKS, main


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Results and page in a folder of their own, with programs that train nothing."""
    monkeypatch.setattr(other_models, "RESULTS", tmp_path)
    monkeypatch.setattr(other_models, "PAGE", tmp_path / "OTHER_MODELS.md")
    monkeypatch.setattr(other_models, "PAGES", tmp_path / "benchmarks")
    calls = []

    def program(name: str) -> SimpleNamespace:
        def train(arguments: list[str]) -> dict:
            calls.append(arguments)
            relu = "relu" in arguments
            seed = int(arguments[arguments.index("--seed") + 1])
            figures = {"accuracy": 0.8 + seed / 100, "validation_loss": 0.5 + seed / 10, "frequency_loss": 6.0}
            sizes = {"examples": 20000, "updates": 10, "median_length": 13, "training_tokens": 4096}
            attention = {"gamma": 8.0} if relu else "softmax"
            return {**figures, **sizes, "bag_of_words_accuracy": 0.5, "attention": attention}

        return SimpleNamespace(__file__=str(tmp_path / "examples" / f"{name}.py"), main=train)

    for name, task in TASKS.items():
        monkeypatch.setitem(TASKS, name, replace(task, program=program(name)))
    return tmp_path, calls


def test_each_kind_runs_with_each_seed_on_the_same_budget(results):
    folder, calls = results
    assert main(["run", "--task", "pairs", "--texts", "some.gz", "other.gz", "--examples", "50"]) == 0
    runs = json.loads((folder / "other-models-pairs.json").read_text(encoding="utf-8"))["runs"]
    assert [(each["kind"], each["seed"]) for each in runs] == [(kind, seed) for seed in SEEDS for kind in KINDS]
    for run, call in zip(runs, calls, strict=True):
        assert call[call.index("--examples") + 1] == "50"
        assert run["command"].startswith("python examples/pairs.py --texts some.gz other.gz --attention ")
        assert f"--seed {run['seed']}" in run["command"]
        assert {"git_commit", "versions", "machine", "loop", "date"} <= run.keys()


def test_the_page_has_the_figures_of_both_seeds(results, capsys):
    folder, _ = results
    for task in TASKS:
        main(["run", "--task", task, "--texts", "some.gz"])
    assert main(["page"]) == 0
    page = (folder / "OTHER_MODELS.md").read_text(encoding="utf-8")
    assert "| ReLU, λ = 0.01 | 8 | 81.5% (81.0%, 82.0%) | 0.650 (0.600, 0.700) |" in page
    assert "| softmax | – |" in page and "A bag of words tells 50.0% right." in page


def test_what_is_missing_is_named(results, capsys):
    folder, _ = results
    assert main(["page"]) == 2
    assert "other_models run --task pairs" in capsys.readouterr().err
    for task in TASKS:
        main(["run", "--task", task, "--texts", "some.gz"])
    path = folder / "other-models-llama.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept["runs"].pop()
    path.write_text(json.dumps(kept), encoding="utf-8")
    assert main(["page"]) == 2
    assert "softmax needs a run with each of the seeds 1, 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["page", "--seed", "1"])


def test_the_committed_page_is_that_of_the_committed_results(tmp_path, monkeypatch):
    committed = PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(other_models, "PAGE", tmp_path / "OTHER_MODELS.md")
    assert other_models.write_page().read_text(encoding="utf-8") == committed
