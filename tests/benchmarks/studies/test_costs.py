"""What a study lacks and costs: recorded seconds where a row has run, those of rows like it where it has not, else nothing."""

import pytest
import yaml

from benchmarks.studies.costs import ALL, Cost, core_seconds, costs_table, study_costs, summary
from benchmarks.studies.parser import ROWS_FILE, load_rows
from benchmarks.studies.tasks import Places, Task
from reluformer.training.run.records import write_json

DATA = {"train": {"source": "data/somewhere/train.de", "target": "data/somewhere/train.en"}, "max_length": 64}
STUDY = {
    "title": "Table 0",
    "position": 1,
    "source": "nowhere",
    "figures": {"bleu": {"label": "BLEU", "path": "bleu.score"}},
    "seeds": {"cpu": [1, 2]},
    "budget": {"cpu": {"updates": 10}},
}


@pytest.fixture
def folder(tmp_path):
    recipe = {"data": DATA, "training": {"max_steps": 100}}
    rows = {
        "plain": {"recipe": {**recipe, "model": {"preset": "vanilla"}}},
        "width_{n}": {"recipe": {**recipe, "model": {"d_model": "{n}"}}, "each": {"n": [8, 16]}},
        "continued": {"recipe": {**recipe, "training": {"max_steps": 50}}, "starts_from": {"cpu": "plain"}},
        "elsewhere": {"recipe": {"data": {"dataset": {"path": "us/corpus"}}, "training": {"max_steps": 9}}},
    }
    studies = {
        "t0": {**STUDY, "rows": [{"row": "plain", "label": "plain"}, {"row": "width_{n}", "label": "width {n}"}]},
        "t1": {**STUDY, "rows": [{"row": "continued", "label": "continued"}], "position": 2, "seeds": {"cpu": [1]}},
        "t2": {**STUDY, "rows": [{"row": "elsewhere", "label": "elsewhere"}], "position": 3},
    }
    (tmp_path / "studies").mkdir()
    for name, content in {ROWS_FILE: rows, **{f"{name}.yaml": study for name, study in studies.items()}}.items():
        (tmp_path / "studies" / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return tmp_path


def places(folder):
    return {name: folder / name for name in ("runs", "results", "studies")}


def give(folder, name, seed, hours, *, threads=1):
    """A result of so many hours, a tenth of them of translating."""
    row = load_rows("cpu", folder / "studies").rows[name]
    training = {"updates": row.recipe["training"]["max_steps"], "processes": 1, "machine": {"torch_threads": threads}}
    result = {
        "row": name,
        "key": row.key,
        "seed": seed,
        "training": training,
        "training_seconds": 3240.0 * hours,
        "evaluations": {"test": {"seconds": 360.0 * hours}},
        "log_history": [],
    }
    write_json(Task(row, seed, Places.of("cpu", folder / "runs", folder / "results")).result_file, result)


def test_a_row_that_has_run_costs_what_it_took(folder):
    give(folder, "plain", 1, 2.0)
    give(folder, "plain", 2, 1.5, threads=2)
    give(folder, "width_8", 1, 1.0)
    give(folder, "width_16", 1, 3.0)
    costs = study_costs("cpu", **places(folder))["t0"]
    assert costs.missing == ["seed 2 of 2 rows"]
    assert (str(costs.whole), str(costs.left)) == ("13.0", "4.0")  # 2.0 and 3.0 of plain, 2 × (1 + 3)
    assert list(costs.corpora) == ["data/somewhere"]


def test_cpu_seconds_are_taken_where_they_were_measured():
    result = {
        "training": {"processes": 2, "machine": {"torch_threads": 3}},
        "training_seconds": 100.0,
        "evaluations": {"validation": {"seconds": 4.0}, "test": {"seconds": 6.0}},
        "log_history": [{"eval_runtime": 1.0}, {"loss": 2.0}, {"eval_runtime": 2.0}],
    }
    assert core_seconds(result) == 110 * 6
    assert core_seconds({**result, "cpu_seconds": 7.0}) == 7 * 2 + 13 * 6, (
        "those of one process, and the cores of the rest"
    )


@pytest.mark.parametrize("seconds, text", [(0.0, "< 0.1"), (179.0, "< 0.1"), (181.0, "0.1"), (1080.0, "0.3")])
def test_hours_are_told_to_a_tenth(seconds, text):
    assert str(Cost(trainings=1, seconds=seconds)) == text


def test_the_estimate_is_the_median_of_rows_like_it(folder):
    for name, seed, hours in (("width_8", 1, 1.0), ("width_8", 2, 2.0), ("width_16", 1, 9.0)):
        give(folder, name, seed, hours)
    assert str(study_costs("cpu", **places(folder))["t0"].left) == "~13.0"  # 2 × 2.0 of plain, 9.0 of width 16


def test_a_row_that_has_not_run_is_estimated_by_those_like_it(folder):
    give(folder, "width_8", 1, 1.0)
    costs = study_costs("cpu", **places(folder))
    assert costs["t0"].missing == ["plain", "width 16", "seed 2 of 1 row"]
    assert (str(costs["t0"].whole), str(costs["t0"].left)) == ("~6.0", "~5.0")
    assert str(costs["t2"].whole) == "not known" and str(costs[ALL].whole) == "> 6.5"


def test_a_missing_row_needs_what_it_starts_from_again(folder):
    give(folder, "plain", 1, 2.0)
    costs = study_costs("cpu", **places(folder))["t1"]
    assert costs.missing == ["continued"] and str(costs.left) == str(costs.whole) == "~3.0"
    give(folder, "continued", 1, 0.5)
    costs = study_costs("cpu", **places(folder))
    assert costs["t1"].missing == [] and (str(costs["t1"].left), str(costs["t1"].whole)) == ("–", "2.5")
    assert costs[ALL].whole.trainings == 9, "a training that two studies need is one"


def test_the_table_and_the_list_say_where_the_corpus_is_from(folder):
    table = costs_table(**places(folder))
    assert "[`data/somewhere`](recipes.md#corpora)" in table
    assert "[`us/corpus`](https://huggingface.co/datasets/us/corpus)" in table
    line = summary(study_costs("cpu", **places(folder))["t0"])
    assert line == (
        "missing: plain; width 8; width 16 · core-hours: not known of not known · "
        "corpus: data/somewhere (docs/recipes.md#corpora)"
    )
