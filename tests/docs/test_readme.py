"""The first page quotes figures: each stands in the generated report or the benchmark that it comes from."""

import re

import pytest

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


# What the README says of a pair of docs/when_to_use.md, whose table is generated from the results.
SAID = {
    "sentences of about 15 tokens, translated": "softmax has {softmax} BLEU and ReLUFormer {relu}",
    "… until validation hardly improves": "softmax is still ahead: {softmax} against {relu}",
    "… with dropout of 0.3 instead of 0.1": "ReLUFormer has {relu} instead of … and softmax {softmax} instead of",
    "sentences of 6.5 words, translated": "after 2,400 updates, {softmax} and {relu} (one seed)",
    "… for 10,000 updates": "after 10,000 softmax is ahead, {softmax} against {relu}",
    "documents of 128 tokens, translated": "softmax has {softmax_seeds} BLEU at 128 tokens, … ReLUFormer has {relu_seeds},",
    "documents of 512 tokens, translated": "{softmax_seeds} at 512, … {relu_seeds},",
    "documents of 1,024 tokens, translated": "{softmax_seeds} at 1,024 (two seeds); … {relu_seeds}, in fewer",
    "documents of 2,048 tokens, translated": "At 2,048, it is {softmax} against {relu}",
    "pictures in 49 patches, 1/L": "{softmax} % against {relu} (two seeds)",
    "pictures in 49 patches, 1/L, more epochs of ReLU": "{relu} % against {softmax};",
    "pictures in 784 patches, 1/L": "{relu} % against {softmax} of softmax",
    "Python source, GELU in the FFN": "perplexity {softmax} with softmax and {relu} with ReLU (GELU in the FFN)",
    "Python source, ReLU in the FFN": "{softmax} and {relu} (ReLU in the FFN)",
}


@pytest.mark.parametrize("task", SAID)
def test_a_figure_stands_on_its_side(task):
    table = (ROOT / "docs" / "when_to_use.md").read_text(encoding="utf-8")
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {task} |")]
    softmax, relu = (re.findall(r"\d+\.\d+", cell) for cell in line.split(" | ")[2:4])
    seeds = {f"{name}_seeds": " and ".join(each[1:]) for name, each in (("softmax", softmax), ("relu", relu))}
    said = SAID[task].format(softmax=softmax[0], relu=relu[0], **seeds)
    assert re.search(re.escape(said).replace("…", ".*"), " ".join(FINDING.split())), said


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
