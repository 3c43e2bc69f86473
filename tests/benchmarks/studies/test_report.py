"""The report: where its figures come from, and what it says beside them."""

import pytest
import yaml

from benchmarks.studies.outcomes import select
from benchmarks.studies.parser import ROWS_FILE
from benchmarks.studies.report import corpus_of
from benchmarks.studies.tasks import read_result
from reluformer.configuration.errors import UserError
from reluformer.records.records import write_json

ORDER = {"higher": "softmax", "lower": "relu"}


def test_a_result_of_another_seed_is_none(study):
    study.give("relu", 1, 0.6)
    tasks = [study.task("relu", seed) for seed in (1, 2)]
    tasks[0].result_file.rename(tasks[1].result_file)
    assert read_result(tasks[1]) is None


def test_a_path_finds_a_row_of_a_table():
    content = {"a": {"table": [{"p": 0.2, "x": "all", "y": 1}, {"p": 1.0, "x": "all", "y": 2}]}}
    assert select(content, "a.table[p=1,x=all].y") == 2
    assert select(content, "a.table[p=5].y") is None and select(content, "b.c") is None
    assert len(select(content, "a.table[x=all]")) == 2
    assert select(content, "a.table[x=all].y") == 1, "the first that fits"
    logged = {"log_history": [{"loss": float(number)} for number in range(12)]}
    assert (select(logged, "log.loss"), select(logged, "log10.loss"), select(logged, "log.x")) == (11.0, 6.5, None)
    with pytest.raises(UserError, match="is no path"):
        select(content, "a..b")


def test_a_figure_of_another_benchmark_is_read_from_its_file(study, tmp_path):
    cells = [{"shape": "wide", "speeds": {"Ours": 9}}, {"shape": "tiny", "speeds": {"softmax": 1, "Ours": 1.25}}]
    write_json(tmp_path / "speeds.json", {"cells": cells})
    speed = {"label": "speed", "file": str(tmp_path / "speeds.json"), "path": "cells[shape=tiny].speeds.{row}"}
    speed |= {"names": {"relu": "Ours"}}
    claim = {"row": "relu", "figure": "speed", "above": 1.2, "below": 1.3}
    study.claims(claim, figures={**study.content["figures"], "speed": speed})
    verdict = study.verdict()
    assert (verdict.verdict, verdict.why) == ("agrees", "1.25"), "no training is needed, and no seed is counted"
    assert "| ReLU | does not converge | – | – | – | – | 1.25 |" in study.report()
    (tmp_path / "speeds.json").unlink()
    assert study.verdict().verdict == "pending"
    study.claims(claim, figures={**study.content["figures"], "speed": {**speed, "sizes": ["paper"]}})
    assert "speed" not in study.report() and "| about |" in study.report()


def test_a_row_of_another_size_is_not_measured_and_the_papers_figures_stand(study):
    rows = yaml.safe_load((study.folder / ROWS_FILE).read_text(encoding="utf-8"))
    rows["width_{n}"]["each"] = {"n": {"paper": [8, 16]}}
    (study.folder / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    paper = {"bleu": {"width_8": 31.0, "width_16": "does not converge"}}
    entry = {"row": "width_{n}", "label": "width {n}", "paper": paper, "not_here": "needs a GPU"}
    study.claims({"row": "width_8", "above": 10.0}, rows=[*study.content["rows"][:2], entry])
    verdict = study.verdict()
    assert (verdict.verdict, verdict.why) == ("not measured", "not trained at this size")
    assert "| width every n | does not converge · 31.0 | – |" in study.report()


def test_claims_are_counted_by_what_they_are_about_and_our_own_apart(study):
    claims = [{"higher": "softmax", "lower": "relu"}, {"text": "another", **ORDER, "figure": "entropy"}]
    study.claims(*claims)
    for row in (("softmax", 1, 0.9), ("relu", 1, 0.6)):
        study.give(*row)
    study.give("relu", 1, 0.6, entropy=1.5)
    report = study.report()
    head = "| ReLUFormer (arXiv 2302.06461) |"
    assert f"{head} BLEU | 1 | 0 | 1 | 1 |\n" in report and f"{head} all | 1 | 1 | 2 | 2 |\n" in report
    study.claims(*claims, ours=True)
    report = study.report()
    assert head not in report and "| our own studies | all | 1 | 1 | 2 | 2 |\n" in report
    assert "| our expectation | verdict |" in report


def test_a_statement_counts_once_however_often_it_is_tested(study):
    both = {"text": "one width", "higher": "softmax", "lower": "width_{n}", "statement": "one statement"}
    study.claims(both, {"text": "another place", **ORDER, "statement": "one statement"})
    for row, quality in (("softmax", 0.9), ("relu", 0.6), ("width_8", 0.5), ("width_16", 0.5)):
        study.give(row, 1, quality)
    report = study.report()
    assert report.count("| **agrees** |") == 3
    assert "| about | agrees | all | decided by one seed |" in report and " | BLEU | 1 | 1 | 1 |\n" in report
    study.claims(both, {"text": "to the end", "higher": "relu", "lower": "softmax", "to_the_end": True,
                        "statement": "one statement"})  # fmt: skip
    assert " | BLEU | 1 | 1 | 1 |\n" in study.report() and "| about | disagrees | all |" in study.report()


def test_the_report_says_how_its_scores_were_measured(study):
    study.claims()
    study.give("softmax", 1, 0.9)
    (line,) = (line for line in study.report().splitlines() if line.startswith("BLEU: 80 texts of `data`, `nrefs:1|"))
    assert "case:mixed" in line


@pytest.mark.parametrize(
    ("data", "corpus"),
    [
        ({"corpus": {"packages": {"names": ["numpy"], "listed": "some.files.txt"}}}, "some.files.txt"),
        ({"train": {"paths": ["data/texts/a.gz", "data/texts/b.gz"]}}, "data/texts"),
        ({"train": {"images": "pictures/train-images"}}, "pictures"),
        ({"train": {"dataset": {"path": "us/texts"}, "paths": None}}, "us/texts"),
        ({"demo": {"train": 9}}, "made by the program"),
    ],
)
def test_the_corpus_of_a_recipe_is_named(data, corpus):
    assert corpus_of({"data": data}) == corpus
