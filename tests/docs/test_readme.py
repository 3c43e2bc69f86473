"""The first page quotes figures: each stands in the generated report or the benchmark that it comes from."""

import re

from .pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
(FINDING,) = re.findall(r"^## What we found\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
REPORT = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
ATTENTION = (ROOT / "benchmarks" / "ATTENTION.md").read_text(encoding="utf-8")


def test_every_quoted_figure_was_measured():
    quoted = set(re.findall(r"\b\d+\.\d+\b|\b\d+ MB\b", FINDING))
    measured = set(re.findall(r"\b\d+\.\d+\b|\b\d+ MB\b", REPORT + ATTENTION))
    assert len(quoted) > 15
    assert quoted - measured == set()


def test_the_verdicts_are_those_of_the_report():
    words = ("agrees", "disagrees", "not measured", "undecided")
    counts = re.search(r"(\d+) claims of the paper: " + ", ".join(rf"{word} (\d+)" for word in words), REPORT)
    quoted = re.search(
        r"Of (\d+) claims of the paper, (\d+) agree with our figures and (\d+) disagree; "
        r"(\d+) need rows that were not trained here, and (\d+) are undecided",
        FINDING,
    )
    assert counts and quoted
    assert counts.groups() == quoted.groups()
