"""Studies are data: every file parses at every size, and rows that train the same are one row."""

from pathlib import Path

import pytest
import yaml

from benchmarks.studies import pictures, tasks, texts
from benchmarks.studies.parser import ROWS_FILE, load_rows, load_study, recipe_of, row_of_line, study_names, table_of
from benchmarks.studies.running import tasks_by_study
from benchmarks.studies.study import SIZES
from benchmarks.studies.tasks import Places, Task
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.run.model_building import build_config
from reluformer.training.run.run_folder import RECIPE_FILE

RELU_PRESETS = ("reluformer", "normalization_free")
STUDIES = {name: load_study(name) for name in study_names()}
EMPTY = {"title": "t", "position": 1, "source": "s", "figures": {}}
BASE = {
    "data": {"source_language": "de", "target_language": "en", "demo": {"train": 100}},
    "model": {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32},
    "training": {"max_steps": 10},
}


@pytest.fixture
def studies(tmp_path):
    """A folder of studies; called with families, and studies by name, it writes them."""

    def write(rows, base=BASE, **named):
        (tmp_path / "bases").mkdir(exist_ok=True)
        (tmp_path / "bases" / "base.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
        (tmp_path / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
        for name, study in named.items():
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture(scope="module")
def catalogues():
    return {size: load_rows(size) for size in SIZES}


def map_of_gamma(catalogue) -> set[str]:
    """Names of the rows that only the map of gamma needs: on a CPU they are short."""
    return {entry.row.name for entry in table_of(STUDIES["gamma"], catalogue) if entry.row is not None}


def starts(catalogue) -> set[str]:
    """Names of the rows that others start from, and no table shows."""
    tables = [table_of(study, catalogue) for study in STUDIES.values()]
    shown = {entry.row.name for table in tables for entry in table if entry.row is not None}
    return {row.start.name for row in catalogue.rows.values() if row.start is not None} - shown


def test_every_table_and_figure_has_its_study():
    wanted = {"t1", "t2", "t3", "t4", "t5", "t6", "f1", "f2", "f3", "f4", "f5", "th4_1", "s3_4", "s4_2", "gamma"}
    assert wanted <= set(STUDIES)
    assert len({study.position for study in STUDIES.values()}) == len(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_rows_seeds_and_figures_for_all_that_it_says(name, catalogues):
    study = STUDIES[name]
    for size, catalogue in catalogues.items():
        measured = all(figure.file for figure in study.figures.values())
        assert measured or any(entry.row is not None for entry in table_of(study, catalogue))
        assert study.seeds[size]
    shown = {plot.y for plot in study.plots if plot.table is None} | {claim.figure for claim in study.claims}
    assert shown <= set(study.figures)
    known = {
        each for catalogue in catalogues.values() for own, row in catalogue.rows.items() for each in (own, row.family)
    }
    for entry in study.rows:
        assert entry.row in known or entry.not_here, entry.row
        assert "{" in entry.row or not any(isinstance(says, dict) for says in entry.paper.values())


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_made_of_rows_that_exist_at_some_size(name, catalogues):
    for claim in STUDIES[name].claims:  # each of exactly one kind
        pairs = [(claim.higher, claim.lower), (claim.best, claim.among), (claim.diverges, claim.twin)]
        assert all(bool(one) == bool(other) for one, other in pairs), claim.text
        kinds = [claim.higher, claim.best, claim.equal, claim.diverges, claim.row]
        assert sum(map(bool, kinds)) == 1 and bool(claim.row) == ({claim.above, claim.below} != {None}), claim.text
    rows = [(row, catalogue.rows[row].values) for catalogue in catalogues.values() for row in catalogue.rows]
    trained = [
        claim for claim in STUDIES[name].claims if claim.diverges or not STUDIES[name].figures[claim.figure].file
    ]
    for claim in trained:
        single = [claim.best, claim.higher, claim.lower, claim.diverges, claim.twin, claim.row]
        for named in filter(None, (*single, *(claim.equal or ()), *(claim.among or ()))):
            assert any(row_of_line(named, values) == row for row, values in rows), (claim.text, named)


@pytest.mark.parametrize("name", STUDIES)
def test_every_line_and_level_of_a_plot_is_of_rows_of_its_table(name, catalogues):
    rows = [entry for entry in table_of(STUDIES[name], catalogues["cpu"]) if entry.row is not None]
    for plot in STUDIES[name].plots:
        for line in plot.lines.values():
            assert any(entry.name == row_of_line(line, entry.row.values) for entry in rows), line
        assert set(plot.levels.values()) <= {entry.name for entry in rows}
        assert not (plot.levels and plot.table), "a table has no single figure"
        labels = {*plot.lines, *plot.levels}
        named = {label for label in labels if "softmax" in label or "ReLU" in label}
        assert named <= set(plot.activations) <= labels, "ReLU and softmax have one colour each"


def test_a_row_may_have_other_seeds_than_its_study(studies):
    families = {"a_{n}": {"layers": ["base"], "each": {"n": [16, 32]}, "recipe": {"model": {"d_model": "{n}"}}}}
    families["plain"] = {"layers": ["base"]}
    rows = [{"row": "plain", "label": "p", "seeds": {"cpu": [1, 2]}}, {"row": "a_{n}", "label": "a"}]
    folder = studies(families, study={**EMPTY, "rows": rows, "seeds": {"cpu": [1]}})
    loaded, catalogue = {"study": load_study("study", folder)}, load_rows("cpu", folder)
    names = [task.name for task in tasks_by_study(loaded, catalogue, Places.of("cpu"))["study"]]
    assert names == ["a_16-seed1", "a_32-seed1", "a_16-seed2"], "one seed of everything first; plain is a_16"
    tasks = tasks_by_study(loaded, catalogue, Places.of("cpu"), seeds=[7])["study"]
    assert [task.seed for task in tasks] == [7, 7]


def config_of(recipe, path):
    """The configuration of a row's model, after what reads the row's recipe has checked it."""
    if recipe.get("task") == "language_modeling":
        return texts.build_config({**recipe, "tokenizer": {"vocab_size": 300}})
    if recipe.get("task") == "image_classification":
        return pictures.build_config({**recipe, "data": {"class_names": ["a", "b"], **recipe["data"]}})
    path.write_text(yaml.safe_dump({key: recipe[key] for key in recipe.keys() - {"task", "row_sum"}}), encoding="utf-8")
    return build_config(load_recipe(path))


@pytest.mark.parametrize(
    ("size", "each"), [("smoke", "family"), *(pytest.param(size, "key", marks=pytest.mark.slow) for size in SIZES)]
)
def test_every_row_is_a_recipe_of_a_model_that_exists(size, each, catalogues, tmp_path):
    untranslated = map_of_gamma(catalogues[size]) | starts(catalogues[size])
    for row in {getattr(row, each): row for row in catalogues[size].rows.values()}.values():
        path = tmp_path / f"{row.name}.yaml"
        content = recipe_of(row, 3, tmp_path / "run")
        if size == "paper":  # for a GPU, which this machine need not have
            content["training"]["bf16"] = False
        config = config_of(content, path)
        assert (content["name"], content["training"]["seed"], content["on_divergence"]) == (row.name, 3, "record")
        # ImageNet and CodeParrot have no other
        held_out = "validation" if "task" in content and size == "paper" else "test"
        assert held_out in content["evaluation"]["splits"] or row.name in untranslated
        if config.attention_activation == "relu" and row.recipe["model"]["preset"] in RELU_PRESETS:
            assert "regularization_weight" in row.recipe["model"], "a default would decide what the row is"
            assert config.attention_scaling != "variance" or "attention_gamma" in row.recipe["model"]


def test_rows_of_one_recipe_are_one_row_with_all_analyses(studies):
    folder = studies(
        {
            "plain": {"layers": ["base"], "recipe": {"model": {"preset": "vanilla"}}},
            "wide_{ffn}": {
                "layers": ["base"],
                "each": {"ffn": [32, 64.0]},
                "recipe": {"model": {"preset": "vanilla", "encoder_ffn_dim": "{ffn}"}},
                "analyses": [{"what": "entropy"}],
            },
            "named": {"layers": ["base"], "recipe": {"name": "x", "description": "y", "model": {"preset": "vanilla"}}},
        }
    )
    rows = load_rows("cpu", folder).rows
    names = {name: rows[name].name for name in ("wide_32", "wide_64.0", "named")}
    assert names == {"wide_32": "plain", "wide_64.0": "wide_64.0", "named": "plain"}
    assert [analysis.what for analysis in rows["plain"].analyses] == ["entropy"]
    assert rows["wide_32"].values == {"ffn": 32}


def test_the_key_is_of_what_is_trained_and_not_of_how_it_is_computed(studies):
    def key(model=None, **training):
        families = {"row": {"layers": ["base"], "recipe": {"training": training, "model": model or {}}}}
        return load_rows("cpu", studies(families)).rows["row"].key

    assert key() == key(seed=5) == key(output_dir="elsewhere") == key(max_steps=10.0)
    assert key() == key({"attn_implementation": "eager"})
    assert len({key(), key(learning_rate=0.1), key(learning_rate=0.2), key({"preset": "rela"})}) == 4


def test_a_row_that_starts_from_another_is_another_row_when_that_one_changes(studies):
    def rows(rate, **start):
        families = {
            "base": {"layers": ["base"]},
            "start": {"layers": ["base"], "recipe": {"training": {"learning_rate": rate}}},
            "row": {"layers": ["base"], "recipe": {"training": {"max_steps": 5}}, **start},
        }
        return load_rows("cpu", studies(families)).rows

    plain, first, second = rows(0.1)["row"], *(rows(rate, starts_from={"cpu": "start"})["row"] for rate in (0.1, 0.2))
    assert len({plain.key, first.key, second.key}) == 3 and plain.start is None
    assert (first.start.name, first.start.recipe["training"]["learning_rate"]) == ("start", 0.1)
    assert rows(0.1, starts_from={"paper": "start"})["row"].key == plain.key
    recipe = recipe_of(first, 3, Path("runs/row"), Path("runs/start"))
    assert recipe["initialize_from"] == str(Path("runs/start")) and "tokenizer" not in recipe
    assert "initialize_from" not in recipe_of(plain, 3, Path("runs/row"))


def test_sizes_change_layers_values_and_existence(studies):
    folder = studies(
        {
            "a_{n}": {
                "layers": ["base"],
                "each": {"n": {"smoke": [1], "cpu": [{"n": 2, "gamma": 4.0}, {"n": 3, "gamma": 6.0}]}},
                "recipe": {"model": {"attention_gamma": "{gamma}"}},
                "at": {
                    "cpu": {"recipe": {"training": {"max_steps": 20}}},
                    "smoke": {"recipe": {"model": {"attention_gamma": 1}}},
                },
                "sizes": ["cpu"],
            }
        },
        study={**EMPTY, "rows": [{"row": "a_{n}", "label": "n = {n}"}]},
    )
    rows = load_rows("cpu", folder).rows
    assert {name: row.recipe["model"]["attention_gamma"] for name, row in rows.items()} == {"a_2": 4.0, "a_3": 6.0}
    assert rows["a_2"].recipe["training"]["max_steps"] == 20
    study = load_study("study", folder)
    assert [entry.label for entry in table_of(study, load_rows("cpu", folder))] == ["n = 2", "n = 3"]
    assert load_rows("paper", folder).rows == {}
    (elsewhere,) = table_of(study, load_rows("paper", folder))
    assert (elsewhere.row, elsewhere.label) == (None, "n = every n")


@pytest.mark.parametrize(
    ("families", "named"),
    [
        ({"row": {"layrs": ["base"]}}, "layrs"),
        (
            {"row": {"layers": ["base"], "starts_from": {"cpu": "late"}}, "late": {"layers": ["base"]}},
            "starts from late",
        ),
        ({"row": {"layers": ["bse"]}}, "no layer 'bse'"),
        ({"row": {"layers": ["base"], "recipe": {"name": "{ffn}"}}}, "no value for 'ffn'"),
        ({"a_1": {"layers": ["base"]}, "a_{n}": {"layers": ["base"], "each": {"n": [1]}}}, "a_1"),
    ],
)
def test_mistakes_are_refused_in_one_line(studies, families, named):
    with pytest.raises(UserError, match=named) as caught:
        load_rows("cpu", studies(families))
    assert "\n" not in str(caught.value)


def test_a_row_is_trained_in_what_the_processor_computes_and_goes_on_in_the_type_that_it_began_with(
    tmp_path, monkeypatch
):
    rows = load_rows("cpu").rows.values()
    row = next(each for each in rows if each.recipe["training"].get("bf16"))
    task = Task(row, 1, Places.of("cpu", tmp_path))
    for in_hardware in (True, False):
        monkeypatch.setattr(tasks, "has_bfloat16", lambda answer=in_hardware: answer)
        assert task.recipe()["training"]["bf16"] is in_hardware
    task.run_folder.mkdir(parents=True)
    for began in (True, False):
        monkeypatch.setattr(tasks, "has_bfloat16", lambda answer=not began: answer)
        written = {"training": {"bf16": True} if began else {}}  # a recipe that is written leaves the default out
        (task.run_folder / RECIPE_FILE).write_text(yaml.safe_dump(written), encoding="utf-8")
        assert task.recipe()["training"]["bf16"] is began
    on_gpu = Task(row, 1, Places.of("cpu", tmp_path / "other", on_gpu=True))
    monkeypatch.setattr(tasks, "has_bfloat16", lambda: False)
    assert on_gpu.recipe()["training"]["bf16"] is True
