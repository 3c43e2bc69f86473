"""A verdict says of a claim what the figures say, and never more: pending, agrees, disagrees, undecided, not
measured."""

import pytest
import yaml

from benchmarks.studies.claims import Verdict, of_statement
from benchmarks.studies.parser import ROWS_FILE
from benchmarks.studies.scores import STATISTICS, compare_means
from reluformer.records.records import write_json

ORDER = {"higher": "softmax", "lower": "relu"}


def test_a_clear_difference_of_both_seeds_agrees_or_disagrees(study):
    study.claims(ORDER)
    for seed in (1, 2):
        study.give("softmax", seed, 0.9)
        study.give("relu", seed, 0.6)
    verdict = study.verdict()
    assert verdict.verdict == "agrees" and verdict.why.endswith(" BLEU, p < 0.001 (two seeds)")
    study.claims({"higher": "relu", "lower": "softmax"})
    assert study.verdict().verdict == "disagrees"


def test_one_seed_is_marked_and_two_that_differ_decide_nothing(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.6)
    verdict = study.verdict()
    assert verdict.verdict == "agrees" and verdict.why.endswith("(one seed)")
    assert " | 1 |\n" in study.report()
    study.give("softmax", 2, 0.6, machine={"accelerators": ["H100"]})
    assert "| 2, 1 of them on a GPU |" in study.report()
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
    assert f", {second}) BLEU, p < 0.001: within the noise of the seeds" in torn.why


def test_equal_and_not_behind_are_decided_by_an_interval_and_not_by_the_difference(study):
    results = [study.give(*row)["bleu"] for row in (("softmax", 1, 0.9), ("relu", 1, 0.6))]
    test = compare_means(STATISTICS["bleu"], *([each] for each in results))
    low, high = test.interval(90)
    assert 0 < low < test.difference < high
    for margin, verdict in ((1.01 * high, "agrees"), (1.01 * test.difference, "undecided"), (0.99 * low, "disagrees")):
        for claim in (
            {"equal": ["relu", "softmax"], "margin": margin},
            {"higher": "relu", "lower": "softmax", "margin": -margin},
        ):
            study.claims(claim)
            assert study.verdict().verdict == verdict, claim
    assert f"90 % interval {-high:+.2f} to {-low:+.2f}: more than {0.99 * low:g} behind" in study.verdict().why
    for margin, verdict in ((0.5 * low, "agrees"), (0.99 * test.difference, "undecided"), (2 * high, "disagrees")):
        study.claims({**ORDER, "margin": margin})
        assert study.verdict().verdict == verdict


@pytest.mark.parametrize(("relu", "verdict"), [(0.5, "agrees"), (0.799, "undecided"), (0.99, "disagrees")])
def test_the_best_is_above_each_of_the_others(study, relu, verdict):
    study.claims({"best": "softmax", "among": ["width_8", "relu"]})
    study.give("softmax", 1, 0.8)
    study.give("width_8", 1, 0.5)
    assert study.verdict().verdict == "pending"
    study.give("relu", 1, relu)
    found = study.verdict()
    assert found.verdict == verdict and "beside width 8: +" in found.why and "; beside ReLU: " in found.why


def test_the_ends_of_several_are_those_of_the_means(study):
    study.claims({"equal": ["softmax", "relu", "width_8"], "margin": 0.5})
    for seed, softmax, relu in ((1, 0.9, 0.8), (2, 0.6, 0.9)):
        study.give("softmax", seed, softmax)
        study.give("relu", seed, relu)
        study.give("width_8", seed, 0.5)
    verdict = study.verdict()
    assert verdict.verdict == "disagrees" and verdict.why.startswith("from width 8 to ReLU: ")


def test_what_is_missing_is_pending(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9)
    assert study.verdict().verdict == "pending"
    report = study.report()
    assert "| pending: seed 1: not run; seed 2: not run |" in report
    assert "| ReLUFormer (arXiv 2302.06461) | all | 1 | 1 |" in report and "widths: pending." in report


def test_rows_of_unequal_updates_decide_nothing(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9, updates=2600)
    study.give("relu", 1, 0.6)
    verdict = study.verdict()
    assert (verdict.verdict, verdict.why) == ("undecided", "trained for 2,600 and 2,400 updates (one seed)")
    study.claims({**ORDER, "of_updates": True})
    assert study.verdict().verdict == "agrees", "the claim is about the updates"
    study.claims(ORDER)
    result = study.give("relu", 1, 0.6, updates=400)
    start = {"updates": 2200, "training_seconds": 9.0}
    write_json(study.task("relu", 1).result_file, {**result, "start": start})
    assert study.verdict().verdict == "agrees", "what a row started from counts as its training"


@pytest.mark.parametrize(
    ("relu", "seconds", "verdict"),
    [
        (0.9, 90.0, "agrees"),  # ahead, for less
        (0.9, 110.0, "undecided"),  # ahead, for more
        (0.3, 90.0, "undecided"),  # behind, for less
        (0.3, 110.0, "disagrees"),
        (0.9, None, "pending"),
    ],
)
def test_what_core_seconds_buy_is_judged_where_a_row_is_ahead_with_fewer_or_behind_with_more(
    study, relu, seconds, verdict
):
    study.claims({"higher": "relu", "lower": "softmax", "per_compute": True})
    for row, quality, cpu_seconds, updates in (("softmax", 0.6, 100.0, 2400), ("relu", relu, seconds, 6000)):
        result = study.give(row, 1, quality, updates=updates)
        write_json(study.task(row, 1).result_file, {**result, "cpu_seconds": cpu_seconds})
    found = study.verdict()
    assert found.verdict == verdict
    assert seconds is None or f"in {seconds:.0f} core-seconds against 100" in found.why


def verdicts(*words, ended=()):
    return [
        Verdict("", word, "", "BLEU", "a statement", to_the_end)
        for words, to_the_end in ((words, False), (ended, True))
        for word in words
    ]


@pytest.mark.parametrize(
    ("words", "ended", "expected"),
    [
        (["agrees", "agrees"], [], "agrees"),
        (["agrees", "not measured"], [], "agrees"),
        (["agrees", "undecided"], [], "undecided"),
        (["disagrees", "undecided"], [], "disagrees"),
        (["disagrees", "agrees"], [], "undecided"),
        (["agrees", "pending"], [], "pending"),
        (["not measured"], [], "not measured"),
        (["disagrees", "disagrees"], ["undecided"], "undecided"),
        (["undecided"], ["disagrees", "agrees"], "undecided"),
        (["agrees"], ["disagrees"], "disagrees"),
        (["agrees"], ["not measured"], "agrees"),
        (["agrees"], ["pending"], "pending"),
    ],
)
def test_a_statement_is_decided_by_all_its_tests_and_by_those_trained_to_the_end_alone(words, ended, expected):
    assert of_statement(verdicts(*words, ended=ended)) == expected


def test_a_result_of_another_recipe_is_pending(study):
    study.claims(ORDER)
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.6)
    rows = yaml.safe_load((study.folder / ROWS_FILE).read_text(encoding="utf-8"))
    rows["relu"]["recipe"]["model"]["attention_gamma"] = 3.0
    (study.folder / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    assert study.verdict().verdict == "pending"


@pytest.mark.parametrize(
    ("softmax", "relu", "verdict"),
    [(0.9, 0.0, "agrees"), (0.9, 0.6, "agrees"), (0.9, 0.85, "disagrees"), (0.3, 0.0, "undecided")],
)
def test_convergence_is_judged_beside_the_softmax_twin(study, softmax, relu, verdict):
    study.claims({"diverges": "relu", "twin": "softmax"})
    scores = [study.give("softmax", 1, softmax)["bleu"]["score"], study.give("relu", 1, relu)["bleu"]["score"]]
    found = study.verdict()
    assert found.verdict == verdict and (softmax == 0.9) == (scores[0] > 10)
    assert softmax < 0.9 or f"({100 * scores[1] / scores[0]:.0f} %) (one seed)" in found.why
    study.claims(ORDER)
    assert study.verdict().why.endswith("neither has learned the task (one seed)") == (softmax < 0.9)
    study.claims(ORDER, ours=True)
    assert study.verdict().verdict != "undecided" or relu == 0.85


def test_a_loss_that_is_not_finite_does_not_converge(study):
    study.claims({"diverges": "relu", "twin": "softmax"}, ORDER)
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.0, updates=100, diverged=study.gone)
    verdicts = study.verdicts()
    assert [verdict.verdict for verdict in verdicts] == ["agrees", "agrees"]
    assert "since update 90" in verdicts[0].why
    assert "| ReLU | does not converge | does not converge |" in study.report()


def test_a_row_that_diverges_is_the_worst_the_equal_of_none_and_has_no_other_figures(study):
    study.give("softmax", 1, 0.9)
    study.give("relu", 1, 0.0, updates=100, diverged=study.gone)
    score = study.give("relu", 2, 0.6)["bleu"]["score"]
    figures = {**study.content["figures"], "perplexity": {"label": "perplexity", "path": "perplexity.score"}}
    for claim, verdict in (
        ({"equal": ["softmax", "relu"], "margin": 0.5}, "disagrees"),
        ({"higher": "relu", "lower": "softmax"}, "disagrees"),
        ({"higher": "relu", "lower": "softmax", "figure": "perplexity"}, "agrees"),
        ({**ORDER, "figure": "perplexity"}, "disagrees"),
        ({**ORDER, "figure": "entropy"}, "undecided"),
        ({"row": "relu", "figure": "over", "below": 0.0}, "undecided"),
    ):
        study.claims(claim, figures=figures)
        assert study.verdict().verdict == verdict, claim
    study.claims()
    assert f"{score:.2f} (does not converge, {score:.2f})" in study.report(), (
        "the seed that diverged is not left out of the mean in silence"
    )
    study.claims(ORDER)
    study.give("softmax", 2, 0.3)
    assert study.verdict().why.startswith("seed 1: ReLU does not converge; seed 2: -"), "each seed by itself"
    assert study.verdict().verdict == "undecided"


def test_a_relative_figure_waits_for_the_row_that_it_is_compared_with(study):
    study.claims({"row": "relu", "figure": "over", "below": 0.0})
    score = study.give("relu", 1, 0.6)["bleu"]["score"]
    found = study.verdict()
    assert (found.verdict, found.why) == ("pending", "softmax: seed 1: not run; seed 2: not run")
    study.give("softmax", 1, 0.0, diverged=study.gone)
    assert study.verdict().why == "what it is compared with does not converge (one seed)"
    other = study.give("softmax", 1, 0.9)["bleu"]["score"]
    found, percent = study.verdict(), f"{100 * (score / other - 1):.1f}"
    assert (found.verdict, found.why) == ("agrees", f"{percent} (one seed)")
    assert f"| {percent} | 1 |" in study.report()
    study.give("softmax", 1, 0.9, updates=2600)
    assert study.verdict().why.startswith("trained for")


def test_a_seed_that_diverged_is_not_left_out_for_want_of_the_figure(study):
    study.claims({**ORDER, "figure": "entropy"})
    for seed in (1, 2):
        study.give("softmax", seed, 0.9, entropy=1.5)
    study.give("relu", 1, 0.0, updates=100, analyses=False, diverged=study.gone)
    study.give("relu", 2, 0.9, entropy=1.2)
    verdict = study.verdict()
    assert (verdict.verdict, verdict.why) == ("undecided", "seed 1: ReLU does not converge; seed 2: 1.50 against 1.20")


def test_of_few_sentences_nothing_is_said(study):
    study.claims({"equal": ["relu", "softmax"], "margin": 100.0})
    for name, quality in (("softmax", 0.9), ("relu", 0.8)):
        study.give(name, 1, quality, sentences=9)
    verdict = study.verdict()
    assert verdict.verdict == "undecided" and verdict.why.endswith(": 9 texts are too few for a bootstrap (one seed)")


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
    study.claims({**ORDER, "figure": "entropy"})
    study.give("softmax", 2, 0.9, entropy=1.2)
    study.give("relu", 2, 0.6, entropy=1.5)
    assert study.verdict().verdict == "undecided", "the seeds contradict each other"
    for seed in (1, 2):
        study.give("relu", seed, 0.6, analyses=False)
    assert study.verdict().verdict == "pending"


def test_neither_a_difference_within_its_standard_errors_nor_two_whole_documents_decide(study):
    path = (
        study.content["figures"]["entropy"]["path"].removesuffix("entropy") + "noisy"
    )  # with an error of 0.1 in each row
    figures = {"noisy": {"label": "H", "path": path}, "whole": {"label": "BLEU", "path": "evaluations.document_bleu"}}
    study.give("softmax", 1, 0.9, entropy=1.45)
    study.give("relu", 1, 0.6, entropy=1.2)
    for claim, verdict in (
        ({**ORDER, "figure": "noisy"}, "undecided"),  # 1.96 errors of each row are 0.2, and of their difference 0.28
        ({"row": "relu", "figure": "noisy", "below": 1.3}, "undecided"),
        ({"row": "relu", "figure": "noisy", "below": 1.4}, "agrees"),
        ({**ORDER, "figure": "whole"}, "undecided"),
    ):
        study.claims(claim, figures={**study.content["figures"], **figures})
        assert study.verdict().verdict == verdict, claim


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
    assert "| WMT | 27.64 | – | – | – | – | not trained: needs a GPU |" in study.report()
