"""The studies of Vision Transformers: their rows, and what claims, pictures and costs make of accuracies and core-seconds."""

import pytest
import yaml
from matplotlib.figure import Figure

from benchmarks.studies import plots as study_plots
from benchmarks.studies.claims import judge
from benchmarks.studies.outcomes import outcomes_of
from benchmarks.studies.parser import ROWS_FILE, load_rows, load_study
from benchmarks.studies.report import write_reproduction
from benchmarks.studies.running import tasks_by_study
from benchmarks.studies.scores import accuracy_statistics
from benchmarks.studies.tasks import Places, Task
from reluformer.analysis.drawing import RELU, color_of
from reluformer.training.run.records import write_json

VISION = ("vit_f1", "vit_f2", "vit_f3", "vit_f4", "vit_gamma")
FILES = {"images": "pictures/train-images", "labels": "pictures/train-labels"}
PAPER = "arXiv 2309.08586"
STUDY = {
    "title": "Figure 0",
    "position": 1,
    "paper": PAPER,
    "source": "nowhere",
    "rows": [
        {"row": "softmax", "label": "softmax", "seeds": {"cpu": [1, 2]}},
        {"row": "{h}_alpha_{alpha}", "label": "{h}, {alpha}"},
    ],
    "figures": {
        "accuracy": {"label": "accuracy, %", "path": "accuracy.score"},
        "core_seconds": {"label": "core-seconds", "path": "cpu_seconds", "digits": 0},
    },
    "seeds": {"cpu": [1]},
    "budget": {"cpu": {"updates": 10}},
}
RECORD = {
    "updates": 10,
    "epochs": 2.0,
    "processes": 1,
    "git_commit": "0123456789abcdef",
    "git_dirty": False,
    "machine": {"cpu": "a CPU", "torch_threads": 1},
    "versions": {"torch": "1", "transformers": "2"},
}


@pytest.fixture
def study(tmp_path):
    """A study of pictures with given claims, and a way to give its rows results: `give(row, seed, right, …)`."""

    class Prepared:
        places = Places.of("cpu", tmp_path / "runs", tmp_path / "results")
        folder = tmp_path / "studies"

        def write(self, *claims, **changes):
            text = yaml.safe_dump({**STUDY, "claims": [{"text": "a claim", **claim} for claim in claims], **changes})
            (self.folder / "f0.yaml").write_text(text, encoding="utf-8")

        def give(self, name, seed, right, *, seconds=100.0):
            """Writes a result of which `right` of 1,000 pictures, the first ones, are right."""
            row = load_rows("cpu", self.folder).rows[name]
            path = tmp_path / "predictions.tsv"
            lines = [f"{number % 10}\t{number % 10 if number < right else 10}" for number in range(1000)]
            path.write_text("\n".join(["label\tprediction", *lines]), encoding="utf-8")
            result = {
                "row": row.name,
                "key": row.key,
                "seed": seed,
                "training": RECORD,
                "training_seconds": 999.0,
                "cpu_seconds": seconds,
                "evaluations": {"test": {"seconds": 20.0}},
                "recipe": {"data": {"train": FILES}},
                "log_history": [{"step": 5, "eval_runtime": 4.0}],
                "accuracy": accuracy_statistics(path, "test"),
            }
            write_json(Task(row, seed, self.places).result_file, result)

        def outcomes(self):
            return outcomes_of(load_study("f0", self.folder), load_rows("cpu", self.folder), self.places)

        def verdicts(self):
            return judge(load_study("f0", self.folder), self.outcomes())

        def report(self):
            path = tmp_path / "docs" / "reproduction.md"
            places = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
            return write_reproduction(path, sizes=["cpu"], studies=self.folder, **places).read_text(encoding="utf-8")

    (tmp_path / "studies").mkdir()
    recipe = {"task": "image_classification", "data": {"train": FILES}, "training": {"num_train_epochs": 2}}
    model = {"attention_activation": "{h}", "attention_alpha": "{alpha}"}
    rows = {
        "softmax": {"recipe": {**recipe, "model": {"preset": "softmax_vit"}}, "each": {"length": [49]}},
        "{h}_alpha_{alpha}": {
            "recipe": {**recipe, "model": model},
            "each": {"length": [49], "h": ["relu", "gelu"], "alpha": [0.0, 1.0, 1.5]},
        },
    }
    (tmp_path / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    return Prepared()


BEST = {"best": "{h}_alpha_1.0", "among": ["{h}_alpha_0.0", "{h}_alpha_1.5"], "figure": "accuracy"}


@pytest.mark.parametrize(
    ("rights", "verdict"),
    [((700, 800, 600), "agrees"), ((790, 800, 600), "undecided"), ((700, 800, 900), "disagrees")],
)
def test_the_best_of_several_is_above_each_of_them(study, rights, verdict):
    study.write(BEST)
    for alpha, right in zip((0.0, 1.0, 1.5), rights, strict=True):
        study.give(f"relu_alpha_{alpha}", 1, right)
    relu, gelu = study.verdicts()
    if verdict == "undecided":  # ten pictures of which none was found by the other alone: significant, so less
        study.give("relu_alpha_0.0", 1, 799)
        relu, gelu = study.verdicts()
    assert (relu.text, relu.verdict) == ("a claim (h relu)", verdict)
    assert "beside relu, 0.0: +" in relu.why and "beside relu, 1.5: " in relu.why
    assert (gelu.text, gelu.verdict) == ("a claim (h gelu)", "pending")


def test_the_best_is_not_judged_before_all_are_there(study):
    study.write(BEST)
    study.give("relu_alpha_0.0", 1, 900)
    study.give("relu_alpha_1.0", 1, 800)
    relu, _ = study.verdicts()
    assert relu.verdict == "pending" and "relu_alpha_1.5: seed 1: not run" in relu.why


@pytest.mark.parametrize(("gelu", "verdict"), [(796, "agrees"), (700, "disagrees")])
def test_more_than_two_are_equal_if_the_highest_and_the_lowest_are(study, gelu, verdict):
    rows = ["gelu_alpha_0.0", "gelu_alpha_1.0", "relu_alpha_1.0"]
    study.write({"equal": rows, "margin": 0.5, "figure": "accuracy"})
    for row, right in zip(rows, (799, gelu, 800), strict=True):
        study.give(row, 1, right)
    (found,) = study.verdicts()
    assert found.verdict == verdict
    assert found.why.startswith("from gelu, 1.0 to relu, 1.0: +")


@pytest.mark.parametrize(
    ("relu", "verdict"), [(850, "agrees"), (800, "agrees"), (795, "agrees"), (789, "disagrees"), (700, "disagrees")]
)
def test_with_a_negative_margin_one_may_be_so_far_below(study, relu, verdict):
    study.write({"higher": "relu_alpha_1.0", "lower": "softmax", "margin": -1.0, "figure": "accuracy"})
    study.give("relu_alpha_1.0", 1, relu)
    study.give("softmax", 1, 800)
    (found,) = study.verdicts()
    assert found.verdict == verdict and ("no more than 1 below" in found.why) == (verdict == "agrees")


def test_core_seconds_are_compared_as_they_are(study):
    study.write({"higher": "softmax", "lower": "relu_alpha_1.0", "figure": "core_seconds"})
    study.give("softmax", 1, 800, seconds=240.0)
    study.give("relu_alpha_1.0", 1, 800, seconds=100.0)
    (found,) = study.verdicts()
    assert (found.verdict, found.why) == ("agrees", "240 against 100 (one seed)")


def test_a_row_may_have_other_seeds_than_its_study(study):
    study.write()
    assert {name: list(outcome.tasks) for name, outcome in study.outcomes().items()}["softmax"] == [1, 2]
    catalogue, loaded = load_rows("cpu", study.folder), {"f0": load_study("f0", study.folder)}
    tasks = tasks_by_study(loaded, catalogue, study.places)["f0"]
    assert [task.name for task in tasks if task.seed == 2] == ["softmax-seed2"] and len(tasks) == 8
    assert tasks[-1].name == "softmax-seed2", "all rows have their first seed before one has its second"
    tasks = tasks_by_study(loaded, catalogue, study.places, seeds=[7])["f0"]
    assert {task.seed for task in tasks} == {7} and len(tasks) == 7


def test_claims_are_counted_by_paper_and_the_pictures_are_named(study):
    study.write({"higher": "relu_alpha_1.0", "lower": "softmax", "figure": "accuracy"})
    study.give("softmax", 1, 800)
    study.give("relu_alpha_1.0", 1, 900)
    report = study.report()
    assert f"1 claims of {PAPER}: agrees 1." in report and "claims of the paper" not in report
    assert "Accuracy, in percent: 1,000 pictures of `pictures`, split `test`." in report
    assert "| relu, 1.0 | 90.00 | 100 | run, one seed |" in report


def test_a_picture_has_a_measured_figure_on_its_axis_and_names_its_points(study, monkeypatch):
    canvases = []
    monkeypatch.setattr(study_plots, "Canvas", lambda **options: canvases.append(Figure(**options)) or canvases[-1])
    plot = {
        "file": "p.png",
        "title": "p",
        "x": "core_seconds",
        "y": "accuracy",
        "x_label": "s",
        "point": "L = {length}",
    }
    lines = {"softmax": "softmax", "relu": "relu_alpha_{alpha}"}
    study.write(plots=[{**plot, "lines": lines, "activations": {"softmax": "softmax", "relu": "relu"}}])
    for seed, right, seconds in ((1, 800, 200.0), (2, 820, 300.0)):
        study.give("softmax", seed, right, seconds=seconds)
    study.give("relu_alpha_0.0", 1, 700, seconds=90.0)
    study.give("relu_alpha_1.0", 1, 900, seconds=80.0)
    study.report()
    axes = canvases[0].axes[0]
    softmax, relu = sorted(axes.lines, key=lambda line: len(line.get_xdata()))
    assert list(softmax.get_xdata()) == [250.0] and list(softmax.get_ydata()) == pytest.approx([81.0])
    assert list(relu.get_xdata()) == [80.0, 90.0] and list(relu.get_ydata()) == pytest.approx([90.0, 70.0])
    assert relu.get_color() == RELU and [text.get_text() for text in axes.texts] == ["L = 49"] * 3


def test_no_two_activations_of_a_picture_have_one_colour():
    for name in VISION:
        for plot in load_study(name).plots:
            colors = list(study_plots._colors(plot).values())
            assert len(set(colors)) == len(colors) == len(plot.lines) + len(plot.levels), plot.file
    assert color_of("tanh") == color_of("none of these")
