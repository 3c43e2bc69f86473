"""The first pages: short, and each figure on them stands in the generated report or table that it comes from."""

import itertools
import json
import re
import tomllib

import pytest

from benchmarks.sections import better_thread_ratios

from .pages import ROOT


def read(name):
    """A page in one line: sentences break anywhere."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


README, DECIDING = read("README.md"), read("docs/when_to_use.md")


def test_the_first_page_is_read_in_three_minutes():
    """All is counted: code, tables, addresses."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_links_lead_from_pypi_to_files_that_are_there():
    address = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    links = re.findall(r"\]\(([^)]+)\)", README)
    ours = [link.partition("/main/") for link in links if link != "https://arxiv.org/abs/2302.06461"]
    assert len(ours) > 20
    assert {before for before, _, _ in ours} == {f"{address}/blob", f"{address}/raw"}
    assert [path for _, _, path in ours if not (ROOT / path.partition("#")[0]).is_file()] == []


# What the first pages say of a pair of docs/evidence.md, whose table is generated from the results; gain: of one over the other.
MULTI30K, TATOEBA = "… until validation hardly improves", "… for 10,000 updates"
SAID = [
    (README, MULTI30K, "softmax, by {gain:.1f} BLEU on Multi30k (95 % interval {low:.1f} to {high:.1f})"),
    (README, TATOEBA, "and {gain:.1f} on Tatoeba ({low:.1f} to {high:.1f}): each within the noise of {seeds} seeds"),
    (README, "… 10,000 updates, ReLU²", "ReLU² is {gain:.1f} and"),
    (README, "… for 10,000 updates, ReLU²", "and {gain:.1f} behind, within the noise"),
    (README, "pictures in 49 patches, 1/L", "behind in 49 patches ({relu} % against {softmax}, {seeds} seeds)"),
    (
        DECIDING,
        MULTI30K,
        "+{gain:.2f} BLEU on Multi30k (95 % interval over seeds and sentences: {low:.2f} to {high:.2f})",
    ),
    (DECIDING, TATOEBA, "+{gain:.2f} on Tatoeba ({low:.2f} to {high:.2f}), each within the noise"),
    (DECIDING, "… for 800 updates, γ = 16, half the rate", "800 updates on Multi30k, +{gain:.2f} BLEU ({seeds} seed)"),
    (DECIDING, "… 10,000 updates, ReLU²", "behind softmax by {gain:.2f} BLEU on Multi30k"),
    (DECIDING, "… for 10,000 updates, ReLU²", "and by {gain:.2f} on Tatoeba"),
    (DECIDING, "sentences of 6.5 words, translated", "on Tatoeba, +{gain:.2f}, within the noise ({seeds} seed)"),
    (DECIDING, "documents of 128 tokens, translated", "by {gain:.2f} to"),
    (DECIDING, "documents of 2,048 tokens, translated", "to {gain:.2f} BLEU: up to 1,024"),
    (DECIDING, "pictures in 784 patches, 1/L", "in 784, {relu} % against {softmax}, {seeds} seed after one epoch"),
    (DECIDING, "pictures in 196 patches, 1/L", "in 196, {relu} % against {softmax} ({seeds} seed)"),
    (DECIDING, "pictures in 49 patches, 1/L", "in 49, {relu} % against {softmax} ({seeds} seeds)"),
    (DECIDING, "Python source, GELU in the FFN", "perplexity of {softmax} against {relu} ({seeds} seed)"),
    (DECIDING, "Python source, ReLU in the FFN, ReLU², λ = 0.01", "a perplexity of {relu} against {softmax}"),
]


@pytest.mark.parametrize(("page", "task", "words"), SAID, ids=[words for _, _, words in SAID])
def test_a_figure_is_that_of_the_results(page, task, words):
    lines = (ROOT / "docs/evidence.md").read_text(encoding="utf-8").splitlines()
    (cells,) = [line.split(" | ") for line in lines if line.startswith(f"| {task} |")]
    softmax, relu, gain = (re.findall(r"\d+\.\d+", cell) for cell in cells[2:5])
    # the interval is of ReLU over softmax, and the pages tell softmax over ReLU
    interval = re.search(r"interval (\S+) to ([+-][\d.]+)", cells[4])
    low, high = (-float(interval[at]) if interval else None for at in (2, 1))
    seeds = {1: "one", 2: "two", 3: "three"}[len(softmax[1:]) or 1]
    values = {"softmax": softmax[0], "relu": relu[0], "gain": float(gain[0]), "low": low, "high": high, "seeds": seeds}
    assert words.format(**values).replace("-", "−") in page.replace("-", "−")
    if "noise" in words:
        assert "within the noise" in cells[4]


@pytest.mark.parametrize("page", [README, DECIDING], ids=["README", "when_to_use"])
def test_how_many_pairs_of_one_seed_softmax_leads_is_that_of_the_results(page):
    said = re.search(
        r"ahead of ReLU in (\d) of the (\d) pairs .*? \(paired t test, (p = [\d.]+);", read("docs/evidence.md")
    )
    assert said[1] == said[2], "else the pages say something else"
    assert f"ahead in all {said[2]} pairs of one seed (paired t test, {said[3]})" in page


def test_what_relu2_has_over_relu_is_that_of_the_report():
    claim = r"ReLU² is better than ReLU, each with the γ and λ it was given \| \*\*undecided\*\* \| \+([\d.]+) .*?"
    gain, low, high = re.search(claim + r"interval -([\d.]+) to \+([\d.]+)", read("docs/reproduction.md")).groups()
    for page in (DECIDING, read("docs/evidence.md")):
        assert f"it has {gain} BLEU on Multi30k (−{low} to {high})" in page
    losses = re.findall(r"\| ReLU², γ = (\d+), λ = [\d.]+ \| [\d.]+ \| ([\d.]+) \|", read("docs/reproduction.md"))
    best = min(losses, key=lambda row: float(row[1]))
    assert best[0] == "32" and f"the lowest with γ = 32 ({best[1]}, and" in DECIDING


@pytest.mark.parametrize("page", [README, DECIDING], ids=["README", "when_to_use"])
def test_the_speed_is_that_of_the_benchmarks(page):
    rows = re.findall(r"\| (?:AMD|Intel)[^|]* \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", DECIDING)
    training, use = (sorted(map(float, column)) for column in zip(*rows, strict=True))
    assert len(rows) == 11 and "eleven models" in page
    assert f"training is {training[0]} to {training[-1]} times as fast" in page
    assert f"use {use[0]} to {use[-1]} times" in page and "2.06 needs attention dropout" in page
    with_dropout, without = (
        f"{cell['speedups']['ReLUFormer']['MarianMTModel sdpa']['median']:.2f}"
        for cell in cells_of("end-to-end-cpu")
        if (cell["task"], cell["shape"], cell["inputs"], cell["dtype"])
        == ("training", "wide", "1,024 tokens", "float32")
    )
    assert f"trained {without} times as fast as by MarianMTModel with softmax, and with it {with_dropout}" in DECIDING


def cells_of(file):
    return json.loads((ROOT / f"benchmarks/results/{file}.json").read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("page", [README, DECIDING], ids=["README", "when_to_use"])
def test_attention_on_a_gpu_is_told_without_and_with_what_the_default_training_needs(page):
    of = {"forward": ([], [], [], []), "forward+backward": ([], [], [], [])}
    for cell in cells_of("gpu/attention"):
        for which, columns in of.items():
            pairs = itertools.product(("fused", "fused+S+T"), ("FlashAttention-2", "cuDNN"))
            for column, (ours, rival) in zip(columns, pairs, strict=True):
                column.append(cell["ms"][which][rival] / cell["ms"][which][ours])
    (flash, cudnn, *_), (both_flash, both_cudnn, needed_flash, needed_cudnn) = (
        [extremes(column) for column in columns] for columns in of.values()
    )
    assert re.search(rf"forward,? {flash} and {cudnn}", page)
    assert re.search(rf"the backward pass,?( without S and T,)? {both_flash} and {both_cudnn}", page)
    needed = rf"with S and T, which the default training \(λ = 0.01\) needs, {needed_flash} and {needed_cudnn}"
    assert re.search(needed, page)
    conditions = ("16,384 tokens", "bfloat16", "dropout", "padding")
    assert all(condition in page for condition in conditions) and re.search("[Oo]ne H100", page)


@pytest.mark.parametrize("page", [README, DECIDING], ids=["README", "when_to_use"])
def test_training_on_a_gpu_is_that_of_the_benchmark(page):
    speeds = {}
    for cell in (each for each in cells_of("gpu/models") if each["cell"]["task"] == "training"):
        speeds.setdefault(cell["cell"]["model"], []).append(cell["a_second"])
    ratios = [ours / softmax for ours, softmax in zip(speeds["ReLUFormer"], speeds["vanilla"], strict=True)]
    assert len(ratios) == 2 and f"training has {min(ratios):.2f} to {max(ratios):.2f} times" in page
    assert "eneration 0.7" not in page, "it was measured before its launches were halved"


def ratios_of_translating(cells):
    """(int8, float32): those of ReLUFormer over CTranslate2, of each cell."""
    return [
        [cell["speedups"][f"ReLUFormer {kind}"][f"CTranslate2 {kind}"]["median"] for cell in cells]
        for kind in ("int8", "float32")
    ]


def extremes(ratios):
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def test_the_speed_of_translating_is_that_of_the_benchmarks():
    sentences = [cell for cell in cells_of("translating-cpu") if cell["inputs"] == "multi30k-like"]
    int8, float32 = ratios_of_translating(sentences)
    assert [len(int8), len(float32)] == [36, 36]
    equal = f"{extremes(int8)} and {extremes(float32)}"
    better = better_thread_ratios({"cells": sentences}).values()
    of_int8, of_float32 = (extremes([ratios[kind] for ratios in better]) for kind in ("int8", "float32"))
    assert len(better) == 18
    int8, float32 = ratios_of_translating(cells_of("translating-avx2-cpu"))
    assert [len(int8), len(float32)] == [13, 13]
    for text in (README, DECIDING):
        assert re.search(rf"{of_int8} times as fast (as CTranslate2 )?in int8,? (and )?{of_float32}", text)
        assert "each at its better number of threads" in text and equal in text
        assert re.search(rf"{extremes(int8)} (times )?in int8, {extremes(float32)} in float32", text)


def test_the_verdicts_are_those_of_the_report():
    rows = re.findall(r"\| ReLUFormer \(arXiv 2302\.06461\) \| (\w+) ((?:\| \d+ ){5})\|", read("docs/reproduction.md"))
    counts = {about: re.findall(r"\d+", numbers) for about, numbers in rows}
    words = ("agree", "disagree", "undecided", "not measured")
    said = {}
    for about in ("BLEU", "mechanism", "speed"):
        numbers = zip(counts[about], words, strict=False)
        said[about] = ", ".join(f"{number} {word}" for number, word in numbers if number != "0")
    assert f"BLEU {said['BLEU']}; mechanisms {said['mechanism']}; speed {said['speed']}." in README


def test_the_papers_main_claim_is_about_long_documents_and_undecided():
    report = read("docs/reproduction.md")
    table_6 = report.partition("### Table 6")[2].partition("###")[0]
    words = re.findall(r"\*\*(agrees|disagrees|undecided|not measured|pending)\*\*", table_6)
    assert len(words) == 11 and set(words) == {"undecided", "not measured"}
    assert "Its main one, ReLUFormer ahead on long documents, is undecided" in README
    assert "none of the eleven claims of [its table 6]" in DECIDING
