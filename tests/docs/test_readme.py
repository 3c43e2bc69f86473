"""The first pages: short, and each figure on them stands in the generated report or table that it comes from."""

import re
import tomllib

import pytest

from .pages import ROOT


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


README = read("README.md")
DECIDING = read("docs/when_to_use.md")


def test_the_first_page_is_read_in_three_minutes():
    """All is counted: code, tables, addresses."""
    assert len(README.splitlines()) <= 100
    assert len(README.split()) <= 650


def test_links_lead_from_pypi_to_files_that_are_there():
    address = tomllib.loads(read("pyproject.toml"))["project"]["urls"]["Repository"]
    links = re.findall(r"\]\(([^)]+)\)", README)
    ours = [link.partition("/main/") for link in links if link != "https://arxiv.org/abs/2302.06461"]
    assert len(ours) > 20
    assert {before for before, _, _ in ours} == {f"{address}/blob", f"{address}/raw"}
    assert [path for _, _, path in ours if not (ROOT / path).is_file()] == []


# What the first pages say of a pair of docs/evidence.md, whose table is generated from the results; gain: of one over the other.
SAID = [
    (README, "… until validation hardly improves", "softmax (+{gain:.1f} BLEU on Multi30k"),
    (README, "… for 10,000 updates", "+{gain:.1f} on Tatoeba, three seeds each)"),
    (README, "pictures in 784 patches, 1/L", "ahead in 784 patches ({relu} % against {softmax}, one seed)"),
    (README, "pictures in 49 patches, 1/L", "behind in 49 ({relu} % against {softmax}, two seeds)"),
    (DECIDING, "… until validation hardly improves", "| softmax | +{gain:.2f} BLEU on Multi30k"),
    (DECIDING, "… for 10,000 updates", "and +{gain:.2f} on Tatoeba (three seeds each)"),
    (DECIDING, "… with dropout of 0.3 instead of 0.1", "with dropout of 0.3, +{gain:.2f} BLEU on Multi30k"),
    (DECIDING, "sentences of 6.5 words, translated", "on Tatoeba, +{gain:.2f}, within the noise (one seed each)"),
    (DECIDING, "documents of 128 tokens, translated", "by {gain:.2f} to"),
    (DECIDING, "documents of 2,048 tokens, translated", "to {gain:.2f} BLEU: up to 1,024"),
    (DECIDING, "pictures in 784 patches, 1/L", "{relu} % against {softmax} (one seed)"),
    (DECIDING, "pictures in 49 patches, 1/L", "{relu} % against {softmax} (two seeds)"),
    (DECIDING, "Python source, GELU in the FFN", "| softmax | perplexity of {softmax} against {relu}"),
]


@pytest.mark.parametrize(("page", "task", "words"), SAID, ids=[words for _, _, words in SAID])
def test_a_figure_is_that_of_the_results(page, task, words):
    (line,) = [line for line in read("docs/evidence.md").splitlines() if line.startswith(f"| {task} |")]
    softmax, relu, gain = (re.findall(r"\d+\.\d+", cell) for cell in line.split(" | ")[2:5])
    seeds = {1: "one", 2: "two", 3: "three"}[len(softmax[1:]) or 1]
    said = words.format(softmax=softmax[0], relu=relu[0], gain=float(gain[0]))
    assert said in page
    assert "seed" not in said or f"{seeds} seed" in said


@pytest.mark.parametrize("page", [README, DECIDING], ids=["README", "when_to_use"])
def test_the_speed_is_that_of_the_benchmarks(page):
    rows = re.findall(r"^\| .* \| AMD EPYC \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", DECIDING, re.MULTILINE)
    training, use = (sorted(map(float, column)) for column in zip(*rows, strict=True))
    assert len(rows) == 8
    assert f"training is {training[0]} to {training[-1]} times as fast, and use {use[0]} to {use[-1]} times" in page


@pytest.mark.parametrize("page", [README, DECIDING], ids=["README", "when_to_use"])
def test_the_speed_on_a_gpu_is_that_of_the_campaign(page):
    goals = read("benchmarks/GPU.md")
    for which, words in (
        ("forward", "{} to {} times as fast as FlashAttention-2"),
        ("forward+backward", "{} to {} times with"),
    ):
        row = rf"^\| {re.escape(which)}, 16,384 tokens, heads of \d+ \| ≥ 1.5× FlashAttention-2 \| ([\d.]+)×"
        ratios = sorted(float(ratio) for ratio in re.findall(row, goals, re.MULTILINE))
        assert words.format(*(f"{ratio:.1f}" for ratio in ratios)) in page
    (training,) = re.findall(r"^\| training, iwslt14, 1,024 tokens, .* \| ([\d.]+)× \|", goals, re.MULTILINE)
    assert f"training at 1,024 tokens has {training} times the speed of Marian's" in page


def test_the_verdicts_are_those_of_the_report():
    words = ("agrees", "disagrees", "not measured", "undecided")
    counts = re.search(
        r"(\d+) claims of the paper: " + ", ".join(rf"{word} (\d+)" for word in words), read("docs/reproduction.md")
    )
    quoted = re.search(
        r"Of (\d+) claims of the paper, (\d+) agree with our figures and (\d+) disagree; "
        r"(\d+) need rows that were not trained here, and (\d+) are undecided",
        README,
    )
    assert counts and quoted
    assert counts.groups() == quoted.groups()
