"""The report says of every claim what the figures say, and never more: pending, agrees, disagrees, undecided, not measured."""

import json

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from benchmarks.studies import plots as study_plots
from benchmarks.studies.bleu import bleu_statistics
from benchmarks.studies.claims import judge
from benchmarks.studies.outcomes import outcomes_of, select
from benchmarks.studies.parser import ROWS_FILE, load_rows, load_study
from benchmarks.studies.report import write_reproduction
from benchmarks.studies.tasks import Places, Task, is_stale, read_result
from reluformer.analysis.colors import RELU, SOFTMAX
from reluformer.configuration.errors import UserError
from reluformer.training.run.records import write_json
from reluformer.training.scoring.evaluation import write_translations

RECORD = {
    "updates": 2400,
    "git_commit": "0123456789abcdef",
    "git_dirty": False,
    "machine": {"cpu": "a CPU"},
    "versions": {"torch": "1", "transformers": "2"},
}
STUDY = {
    "title": "Table 0",
    "position": 1,
    "source": "nowhere",
    "rows": [
        {"row": "softmax", "label": "softmax", "paper": {"bleu": 34.22}},
        {"row": "relu", "label": "ReLU", "paper": {"bleu": "does not converge"}},
        {"row": "elsewhere", "label": "WMT", "paper": {"bleu": 27.64}, "not_here": "needs a GPU"},
        {"row": "width_{n}", "label": "width {n}"},
    ],
    "figures": {
        "bleu": {"label": "BLEU", "path": "bleu.score"},
        "entropy": {"label": "H", "path": "analyses.entropy.table[layer=all,module=cross].entropy"},
        "dead": {"label": "dead, %", "path": "log.eval_dead_row_fraction", "digits": 1, "factor": 100},
    },
    "seeds": {"cpu": [1, 2]},
    "budget": {"cpu": {"updates": 2400}},
    "plots": [
        {"file": "p.png", "title": "widths", "x": "n", "y": "bleu", "x_label": "n", "lines": {"width": "width_{n}"}}
    ],
}


@pytest.fixture
def study(tmp_path):
    """A study with given claims, and a way to give its rows results: `give(row, seed, quality, …)`."""

    class Prepared:
        places = Places.of("cpu", tmp_path / "runs", tmp_path / "results")
        folder = tmp_path / "studies"

        def claims(self, *claims, **changes):
            text = yaml.safe_dump({**STUDY, "claims": [{"text": "a claim", **claim} for claim in claims], **changes})
            (self.folder / "t0.yaml").write_text(text, encoding="utf-8")

        def task(self, name, seed):
            return Task(load_rows("cpu", self.folder).rows[name], seed, self.places)

        def give(self, name, seed, quality, *, updates=2400, entropy=1.0, analyses=True, **record):
            """Writes a result whose BLEU is high where `quality` is near 1, and returns it."""
            task = self.task(name, seed)
            row = task.row
            table = [
                {"layer": 1, "module": "cross", "entropy": 9.9},
                {"layer": "all", "module": "cross", "entropy": entropy},
            ]
            result = {
                "row": row.name,
                "key": row.key,
                "seed": seed,
                "training": {**RECORD, "updates": updates, **record},
                "training_seconds": 60.0,
                "recipe": {"data": {"test": {"source": "test.de", "target": "test.en"}}},
                "log_history": [{"step": 5, "eval_dead_row_fraction": 0.25}, {"step": 9}],
                "analyses": {"entropy": {"table": table}} if analyses else {},
                "bleu": None if record.get("diverged") else bleu_statistics(self._translations(quality), {}),
            }
            write_json(task.result_file, result)
            return result

        def _translations(self, quality):
            words = [f"w{number}" for number in range(30)]
            generator = np.random.default_rng(0)
            references = [" ".join(generator.choice(words, 9)) for _ in range(80)]
            noisy = np.random.default_rng(int(quality * 1000))
            hypotheses = [
                " ".join(word if noisy.random() < quality else "x" for word in reference.split())
                for reference in references
            ]
            return write_translations(tmp_path / "translations.tsv", references, hypotheses, references)

        def outcomes(self):
            return outcomes_of(load_study("t0", self.folder), load_rows("cpu", self.folder), self.places)

        def verdict(self):
            (verdict,) = judge(load_study("t0", self.folder), self.outcomes())
            return verdict

        def report(self):
            path = tmp_path / "docs" / "reproduction.md"
            places = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
            return write_reproduction(path, sizes=["cpu"], studies=self.folder, **places).read_text(encoding="utf-8")

    (tmp_path / "studies").mkdir()
    rows = {
        "softmax": {"recipe": {"model": {"preset": "vanilla"}}},
        "relu": {"recipe": {"model": {"preset": "reluformer"}}},
        "elsewhere": {"recipe": {"model": {"preset": "rela"}}, "sizes": ["paper"]},
        "width_{n}": {"recipe": {"model": {"d_model": "{n}"}}, "each": {"n": [8, 16]}},
    }
    (tmp_path / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    return Prepared()


ORDER = {"higher": "softmax", "lower": "relu"}


def test_a_clear_difference_of_both_seeds_agrees_or_disagrees(study):
    study.claims(ORDER)
    for seed in (1, 2):
        study.give("softmax", seed, 0.9)
        study.give("relu", seed, 0.6)
    verdict = study.verdict()
    assert verdict.verdict == "agrees" and verdict.why.endswith(" BLEU, p = 0.001")
    study.claims({"higher": "relu", "lower": "softmax"})
    assert study.verdict().verdict == "disagrees"


def test_one_seed_is_marked_and_two_that_differ_decide_nothing(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.6)
    verdict = study.verdict()
    assert verdict.verdict == "agrees" and verdict.why.endswith("(one seed)")
    assert "run, one seed; seed 2: not run" in study.report()
    study.give("softmax", 2, 0.6)
    study.give("relu", 2, 0.9)
    assert study.verdict().verdict == "undecided"


def test_seeds_are_judged_by_their_means(study):
    study.claims(ORDER)

    def give(seed, softmax, relu):
        ours, theirs = study.give("softmax", seed, softmax), study.give("relu", seed, relu)
        return f"{ours['bleu']['score'] - theirs['bleu']['score']:+.2f}", study.verdict()

    first, alone = give(1, 0.76, 0.71)
    assert alone.verdict == "undecided" and alone.why.endswith("within the noise of the test set (one seed)")
    second, together = give(2, 0.735, 0.695)
    assert together.verdict == "agrees" and f"({first}, {second}) BLEU, p = " in together.why
    give(1, 0.9, 0.6)
    second, torn = give(2, 0.73, 0.72)
    assert second.startswith("-") and torn.verdict == "undecided"
    assert f", {second}) BLEU, p = 0.001: within the noise of the seeds" in torn.why


def test_seeds_that_are_as_far_apart_as_their_mean_decide_nothing(study):
    study.claims(ORDER)
    for seed, softmax in ((1, 0.9), (2, 0.72)):
        study.give("softmax", seed, softmax)
        study.give("relu", seed, 0.7)
    verdict = study.verdict()
    assert verdict.verdict == "undecided" and "p = 0.001: within the noise of the seeds" in verdict.why


def test_a_margin_of_a_score(study):
    scores = [study.give(*row)["bleu"]["score"] for row in (("softmax", 1, 0.9), ("relu", 1, 0.6))]
    difference = scores[0] - scores[1]
    for claim, verdict in (
        ({"equal": ["relu", "softmax"], "margin": 0.75 * difference}, "disagrees"),
        ({"equal": ["relu", "softmax"], "margin": 1.01 * difference}, "agrees"),
        ({**ORDER, "margin": 0.99 * difference}, "agrees"),
        ({**ORDER, "margin": 1.01 * difference}, "disagrees"),
    ):
        study.claims(claim)
        assert study.verdict().verdict == verdict, claim
    study.give("relu", 1, 0.899)
    study.claims({"equal": ["relu", "softmax"], "margin": 0.0})
    verdict = study.verdict()
    assert verdict.verdict == "undecided" and "not within ± 0" in verdict.why, "they may be equal"


def test_one_that_is_better_contradicts_the_best(study):
    study.claims({"best": "softmax", "among": ["width_8", "relu"]})
    for row in (("softmax", 1, 0.801), ("width_8", 1, 0.8), ("relu", 1, 0.99)):
        study.give(*row)
    verdict = study.verdict()
    assert verdict.verdict == "disagrees" and "within the noise" in verdict.why


def test_the_ends_of_several_are_those_of_the_means(study):
    study.claims({"equal": ["softmax", "relu", "width_8"], "margin": 0.5})
    for seed, softmax, relu in ((1, 0.9, 0.8), (2, 0.6, 0.9)):
        study.give("softmax", seed, softmax)
        study.give("relu", seed, relu)
        study.give("width_8", seed, 0.5)
    verdict = study.verdict()
    assert verdict.verdict == "disagrees" and verdict.why.startswith("from width 8 to ReLU: "), (
        "with seed 1, to softmax"
    )


def test_seeds_that_contradict_each_other_decide_nothing(study):
    study.claims({**ORDER, "figure": "entropy"})
    for seed, softmax, relu in ((1, 1.5, 1.2), (2, 1.2, 1.5)):
        study.give("softmax", seed, 0.9, entropy=softmax)
        study.give("relu", seed, 0.9, entropy=relu)
    assert study.verdict().verdict == "undecided"


def test_a_difference_within_the_noise_is_no_verdict(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.801)
    study.give("relu", 1, 0.8)
    verdict = study.verdict()
    assert verdict.verdict == "undecided" and "within the noise" in verdict.why


def test_what_is_missing_or_below_its_budget_is_pending(study):
    study.claims(ORDER)
    assert study.verdict().verdict == "pending"
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.95, updates=2399)
    verdict = study.verdict()
    assert verdict.verdict == "pending", "it would disagree if it counted"
    assert "2,399 of 2,400 updates" in verdict.why
    report = study.report()
    assert "pending (seed 1: 2,399 of 2,400 updates; seed 2: not run)" in report
    assert "1 claims of the paper: pending 1" in report and "widths: pending." in report


def test_what_a_row_started_from_counts_as_its_training(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9, updates=2600)
    result = study.give("relu", 1, 0.6, updates=400)
    assert "400 of 2,400 updates" in study.verdict().why
    start = {"updates": 2200, "training_seconds": 9.0}
    write_json(study.task("relu", 1).result_file, {**result, "start": start})
    assert study.verdict().verdict == "agrees"


def test_a_budget_of_seconds_counts_those_of_the_start(study):
    study.claims({"row": "relu", "above": 10.0}, budget={"cpu": {"updates": 2400, "seconds": 65}})
    result = study.give("relu", 1, 0.6)
    assert "1 of 1 min of training and validation" in study.verdict().why
    start = {"updates": 0, "training_seconds": 9.0}
    write_json(study.task("relu", 1).result_file, {**result, "start": start})
    assert study.verdict().verdict == "agrees"


def test_a_seed_below_the_budget_is_not_in_the_mean_of_the_others(study):
    study.claims()
    score = study.give("relu", 1, 0.6)["bleu"]["score"]
    study.give("relu", 2, 0.9, updates=100)
    assert f"| ReLU | does not converge | {score:.2f} | " in study.report()


def test_a_result_of_another_seed_is_none(study):
    study.give("relu", 1, 0.6)
    tasks = [study.task("relu", seed) for seed in (1, 2)]
    tasks[0].result_file.rename(tasks[1].result_file)
    assert read_result(tasks[1]) is None and is_stale(tasks[1])


def test_rows_of_unequal_updates_decide_nothing(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9, updates=2600)
    study.give("relu", 1, 0.6)
    verdict = study.verdict()
    assert (verdict.verdict, verdict.why) == ("undecided", "trained for 2,600 and 2,400 updates (one seed)")
    study.claims({**ORDER, "of_updates": True})
    assert study.verdict().verdict == "agrees", "the claim is about the updates"


def test_a_size_without_a_budget_is_no_evidence(study):
    study.claims(ORDER, budget={})
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.6)
    assert study.verdict().verdict == "pending"


def test_a_result_of_another_recipe_is_pending(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.6)
    rows = yaml.safe_load((study.folder / ROWS_FILE).read_text(encoding="utf-8"))
    rows["relu"]["recipe"]["model"]["attention_gamma"] = 3.0
    (study.folder / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    verdict = study.verdict()
    assert verdict.verdict == "pending" and "its result is of an earlier recipe" in verdict.why


@pytest.mark.parametrize(
    ("softmax", "relu", "verdict"),
    [(0.9, 0.0, "agrees"), (0.9, 0.8, "disagrees"), (0.0, 0.0, "undecided")],
)
def test_convergence_is_judged_beside_the_softmax_twin(study, softmax, relu, verdict):
    study.claims({"diverges": "relu", "twin": "softmax"})
    study.give("softmax", 1, softmax)
    study.give("relu", 1, relu)
    assert study.verdict().verdict == verdict


def test_a_loss_that_is_not_finite_does_not_converge(study):
    study.claims({"diverges": "relu", "twin": "softmax"}, ORDER)
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.0, updates=100, diverged={"step": 90, "reason": "the loss is not finite since update 90"})
    verdicts = judge(load_study("t0", study.folder), study.outcomes())
    assert [verdict.verdict for verdict in verdicts] == ["agrees", "agrees"]
    assert "since update 90" in verdicts[0].why
    assert "| ReLU | does not converge | does not converge |" in study.report()


def test_a_row_that_diverges_is_the_equal_of_none_and_has_no_other_figures(study):
    gone = {"step": 90, "reason": "the loss is not finite since update 90"}
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.0, updates=100, diverged=gone)
    score = study.give("relu", 2, 0.6)["bleu"]["score"]
    for claim, verdict in (
        ({"equal": ["softmax", "relu"], "margin": 0.5}, "disagrees"),
        ({"higher": "relu", "lower": "softmax"}, "disagrees"),
        ({**ORDER, "figure": "entropy"}, "undecided"),
    ):
        study.claims(claim)
        assert study.verdict().verdict == verdict, claim
    assert f"{score:.2f} (does not converge, {score:.2f})" in study.report(), (
        "the seed that diverged is not left out of the mean in silence"
    )


def test_other_figures_are_compared_by_their_sign_and_margin(study):
    study.give("softmax", 1, 0.9, entropy=1.5)
    study.give("relu", 1, 0.6, entropy=1.2)
    for claim, verdict in (
        ({**ORDER, "figure": "entropy"}, "agrees"),
        ({"higher": "relu", "lower": "softmax", "figure": "entropy"}, "disagrees"),
        ({**ORDER, "figure": "entropy", "margin": 0.5}, "undecided"),
        ({"higher": "relu", "lower": "softmax", "figure": "entropy", "margin": -0.4}, "agrees"),
        ({"higher": "relu", "lower": "softmax", "figure": "entropy", "margin": -0.2}, "disagrees"),
        ({"equal": ["relu", "softmax"], "figure": "entropy", "margin": 0.4}, "agrees"),
        ({"equal": ["relu", "softmax"], "figure": "entropy", "margin": 0.1}, "disagrees"),
        ({"row": "relu", "figure": "entropy", "above": 1.0, "below": 1.3}, "agrees"),
        ({"row": "relu", "figure": "entropy", "below": 1.0}, "disagrees"),
    ):
        study.claims(claim)
        assert study.verdict().verdict == verdict, claim
    study.give("relu", 1, 0.6, analyses=False)
    assert study.verdict().verdict == "pending"


def test_a_figure_that_was_measured_with_one_seed_is_judged_by_that(study):
    study.claims({**ORDER, "figure": "entropy"})
    for name, entropy in (("softmax", 1.5), ("relu", 1.2)):
        study.give(name, 1, 0.9, analyses=False)
        study.give(name, 2, 0.9, entropy=entropy)
    verdict = study.verdict()
    assert (verdict.verdict, verdict.why) == ("agrees", "1.50 against 1.20 (one seed)")
    study.give("relu", 2, 0.9, analyses=False)
    assert study.verdict().verdict == "pending"


def test_a_row_that_cannot_be_run_here_says_why(study):
    study.claims({"higher": "softmax", "lower": "elsewhere"})
    study.give("softmax", 1, 0.9)
    verdict = study.verdict()
    assert verdict.verdict == "not measured" and "needs a GPU" in verdict.why
    assert "| WMT | 27.64 | – | – | – | not possible here: needs a GPU |" in study.report()


def test_a_claim_about_a_family_is_made_of_each_of_its_rows_and_drawn(study):
    study.claims({"row": "width_{n}", "above": 10.0})
    study.give("width_8", 1, 0.9)
    study.give("width_16", 1, 0.8, dead_modules={"encoder.layers.0.self_attn": {"first": 1, "last": 2400}})
    verdicts = judge(load_study("t0", study.folder), study.outcomes())
    assert [(verdict.text, verdict.verdict) for verdict in verdicts] == [
        ("a claim (n 8)", "agrees"),
        ("a claim (n 16)", "agrees"),
    ]
    report = study.report()
    assert "![widths](reproduction/cpu/p.png)" in report
    assert (study.folder.parent / "docs/reproduction/cpu/p.png").stat().st_size > 1000
    assert "all rows dead in encoder.layers.0.self_attn" in report
    assert "2 runs: commit 0123456789ab, a CPU, torch 1, transformers 2" in report


def test_a_row_without_a_place_on_the_axis_is_a_dashed_line_across(study, tmp_path, monkeypatch):
    canvases = []
    monkeypatch.setattr(study_plots, "Canvas", lambda **options: canvases.append(Figure(**options)) or canvases[-1])
    (plot,) = STUDY["plots"]
    study.claims(plots=[{**plot, "levels": {"without attention": "softmax", "not run": "relu"}}])
    study.give("width_8", 1, 0.9)
    scores = [study.give("softmax", seed, quality)["bleu"]["score"] for seed, quality in ((1, 0.5), (2, 0.7))]
    study.report()
    axes = canvases[0].axes[0]
    names = ["width", "without attention", "from the lowest seed to the highest"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == names
    (level,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert level.get_ydata() == pytest.approx([sum(scores) / 2] * 2)


def test_seeds_are_a_band_around_their_mean(study, monkeypatch):
    canvases = []
    monkeypatch.setattr(study_plots, "Canvas", lambda **options: canvases.append(Figure(**options)) or canvases[-1])
    study.claims()
    scores = [study.give("width_8", seed, quality)["bleu"]["score"] for seed, quality in ((1, 0.9), (2, 0.7))]
    study.give("width_16", 1, 0.8)
    study.report()
    axes = canvases[0].axes[0]
    (line,), (band,) = axes.lines, axes.collections
    assert line.get_ydata()[0] == pytest.approx(sum(scores) / 2)
    heights = [y for x, y in band.get_paths()[0].vertices if x == 8]
    assert (min(heights), max(heights)) == pytest.approx((min(scores), max(scores)))


def test_a_line_has_the_colour_of_its_activation(study, monkeypatch):
    canvases = []
    monkeypatch.setattr(study_plots, "Canvas", lambda **options: canvases.append(Figure(**options)) or canvases[-1])
    (plot,) = STUDY["plots"]
    lines, levels = {"ReLU": "width_{n}", "the same": "width_{n}"}, {"softmax": "softmax"}
    plot = {
        **plot,
        "lines": lines,
        "levels": levels,
        "activations": {"ReLU": "relu", "the same": "relu", "softmax": "softmax"},
    }
    study.claims(plots=[plot])
    for row in ("width_8", "softmax"):
        study.give(row, 1, 0.9)
    study.report()
    colors = {line.get_label(): line.get_color() for line in canvases[0].axes[0].lines}
    assert colors["ReLU"] == RELU and colors["softmax"] == SOFTMAX
    assert colors["the same"] not in (RELU, SOFTMAX)
    study.claims(plots=[{**plot, "activations": {"relu": "relu"}}])
    with pytest.raises(UserError, match=r"p\.png: activations names 'relu', which is no line or level"):
        study.report()


def test_a_path_finds_a_row_of_a_table():
    content = {"a": {"table": [{"p": 0.2, "x": "all", "y": 1}, {"p": 1.0, "x": "all", "y": 2}]}}
    assert select(content, "a.table[p=1,x=all].y") == 2
    assert select(content, "a.table[p=5].y") is None and select(content, "b.c") is None
    assert len(select(content, "a.table[x=all]")) == 2
    logged = {"log_history": [{"loss": float(number)} for number in range(12)]}
    assert (
        select(logged, "log.loss") == 11.0 and select(logged, "log10.loss") == 6.5 and select(logged, "log.x") is None
    )
    with pytest.raises(UserError, match="is no path"):
        select(content, "a..b")


def test_a_figure_of_another_benchmark_is_read_from_its_file(study, tmp_path):
    cells = [{"shape": "wide", "speeds": {"Ours": 9}}, {"shape": "tiny", "speeds": {"softmax": 1, "Ours": 1.25}}]
    write_json(tmp_path / "speeds.json", {"cells": cells})
    speed = {"label": "speed", "file": str(tmp_path / "speeds.json"), "path": "cells[shape=tiny].speeds.{row}"}
    speed |= {"names": {"relu": "Ours"}}
    claim = {"row": "relu", "figure": "speed", "above": 1.2, "below": 1.3}
    study.claims(claim, figures={**STUDY["figures"], "speed": speed})
    verdict = study.verdict()
    assert (verdict.verdict, verdict.why) == ("agrees", "1.25"), "no training is needed, and no seed is counted"
    assert "| ReLU | does not converge | – | – | – | 1.25 |" in study.report()
    (tmp_path / "speeds.json").unlink()
    assert study.verdict().verdict == "pending"
    study.claims(claim, figures={**STUDY["figures"], "speed": {**speed, "sizes": ["paper"]}})
    assert "speed" not in study.report() and "0 claims" in study.report()


def test_a_row_of_another_size_is_not_measured_and_the_papers_figures_stand(study):
    rows = yaml.safe_load((study.folder / ROWS_FILE).read_text(encoding="utf-8"))
    rows["width_{n}"]["each"] = {"n": {"paper": [8, 16]}}
    (study.folder / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    paper = {"bleu": {"width_8": 31.0, "width_16": "does not converge"}}
    entry = {"row": "width_{n}", "label": "width {n}", "paper": paper, "not_here": "needs a GPU"}
    study.claims({"row": "width_8", "above": 10.0}, rows=[*STUDY["rows"][:2], entry])
    verdict = study.verdict()
    assert (verdict.verdict, verdict.why) == ("not measured", "width_8 is no row of this size")
    assert "| width every n | does not converge · 31.0 | – |" in study.report()


def test_our_own_studies_are_not_counted_among_the_papers_claims(study):
    study.claims(ORDER, ours=True)
    report = study.report()
    assert "0 claims of the paper" in report and "| our expectation | verdict |" in report


def test_the_report_says_how_its_bleu_was_measured(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9)
    (line,) = (line for line in study.report().splitlines() if line.startswith("BLEU: `nrefs:1|case:mixed|"))
    assert line.endswith(" on `test.de` → `test.en`.")


def test_the_report_says_once_to_what_lengths_its_documents_were_packed(study):
    study.claims(ORDER)
    for name, length in (("softmax", 1024), ("relu", 512), ("width_8", 64)):
        study.give(name, 1, 0.9)
        file = study.task(name, 1).result_file
        result = json.loads(file.read_text(encoding="utf-8"))
        result["recipe"]["data"] |= {"packing": {"oversized": "keep"}, "max_length": length}
        file.write_text(json.dumps(result), encoding="utf-8")
    (line,) = (line for line in study.report().splitlines() if line.startswith("BLEU:"))
    assert line.endswith(" on `test.de` → `test.en`, packed to at most 64, 512 or 1,024 tokens.")


def test_claims_that_say_nothing_or_two_things_are_refused(study):
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.6)
    for claim in ({}, {**ORDER, "row": "relu", "above": 1.0}, {"higher": "relu"}, {**ORDER, "figure": "missing"}):
        study.claims(claim)
        with pytest.raises(UserError, match="claim 'a claim'"):
            study.verdict()
