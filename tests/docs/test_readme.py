"""The first pages: short, and each figure on them stands in the generated report or table that it comes from."""

import re
import tomllib

import pytest

from .pages import ROOT


def read(name):
    """A page in one line: sentences break anywhere."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


README, DECIDING = read("README.md"), read("docs/when_to_use.md")


def test_the_first_page_is_read_in_three_minutes():
    """All is counted: code, tables, addresses."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100
    assert len(README.split()) <= 650


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
    (README, MULTI30K, "+{gain:.1f} BLEU on Multi30k (95 % interval over seeds and sentences: {low} to {high})"),
    (README, TATOEBA, "+{gain:.1f} on Tatoeba, within the noise ({low} to {high})"),
    (README, "pictures in 784 patches, 1/L", "ahead in 784 patches ({relu} % against {softmax}, {seeds} seed)"),
    (README, "pictures in 49 patches, 1/L", "behind in 49 ({relu} % against {softmax}, {seeds} seeds)"),
    (DECIDING, MULTI30K, "+{gain:.2f} BLEU on Multi30k (95 % interval over seeds and sentences: {low} to {high})"),
    (DECIDING, TATOEBA, "+{gain:.2f} on Tatoeba, within the noise ({low} to {high})"),
    (DECIDING, "… for 800 updates, γ = 16, half the rate", "800 updates on Multi30k, +{gain:.2f} BLEU ({seeds} seed)"),
    (DECIDING, "… 10,000 updates, ReLU²", "behind softmax by {gain:.2f} BLEU on Multi30k"),
    (DECIDING, "… for 10,000 updates, ReLU²", "and by {gain:.2f} on Tatoeba"),
    (DECIDING, "… with dropout of 0.3 instead of 0.1", "with dropout of 0.3, +{gain:.2f} BLEU on Multi30k"),
    (DECIDING, "sentences of 6.5 words, translated", "on Tatoeba, +{gain:.2f}, within the noise ({seeds} seed)"),
    (DECIDING, "documents of 128 tokens, translated", "by {gain:.2f} to"),
    (DECIDING, "documents of 2,048 tokens, translated", "to {gain:.2f} BLEU: up to 1,024"),
    (DECIDING, "pictures in 784 patches, 1/L", "{relu} % against {softmax} ({seeds} seed)"),
    (DECIDING, "pictures in 49 patches, 1/L", "{relu} % against {softmax} ({seeds} seeds)"),
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
    low, high = (f"{-float(interval[at]):.2f}".replace("-", "−") if interval else None for at in (2, 1))
    seeds = {1: "one", 2: "two", 3: "three"}[len(softmax[1:]) or 1]
    values = {"softmax": softmax[0], "relu": relu[0], "gain": float(gain[0]), "low": low, "high": high, "seeds": seeds}
    assert words.format(**values) in page


@pytest.mark.parametrize("page", [README, DECIDING], ids=["README", "when_to_use"])
def test_the_speed_is_that_of_the_benchmarks(page):
    rows = re.findall(r"\| (?:AMD|Intel)[^|]* \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", DECIDING)
    training, use = (sorted(map(float, column)) for column in zip(*rows, strict=True))
    assert len(rows) == 8
    assert f"training is {training[0]} to {training[-1]} times as fast, and use {use[0]} to {use[-1]} times" in page
    goals = read("benchmarks/GPU.md")
    kinds = r"\| {} \| \d+ \| \w+ \| 0.0 \| 16384 (?:\| \d+ \(\S+×\) ){{3}}\| \d+ \((\S+)×\) \| \d+ \((\S+)×\)"
    both = [re.findall(kinds.format(re.escape(which)), goals) for which in ("forward", "forward+backward")]
    rivals = [sorted(map(float, ratios)) for cells in both for ratios in zip(*cells, strict=True)]
    flash, cudnn, flash_backward, cudnn_backward = (f"{low:.2f} to {high:.2f}" for low, *_, high in rivals)
    assert f"{flash} times as fast as FlashAttention-2 forward, and {flash_backward} times with the" in page
    assert f"with the backward pass; beside cuDNN, {cudnn} and {cudnn_backward} times" in page
    pairs = r"\| {}, iwslt14, [^|]*, ReLUFormer \| (\d\S+) .*?, vanilla \| (\S+) "
    found = (re.findall(pairs.format(what), goals) for what in ("training", "generation"))
    ratios = ([float(relu) / float(softmax) for relu, softmax in of] for of in found)
    training, use = (f"{min(of):.2f} to {max(of):.2f} times" for of in ratios)
    assert f"training has {training} the speed, and generation {use}" in page


def test_the_speed_of_translating_is_that_of_the_benchmarks():
    page = (ROOT / "benchmarks/MODELS.md").read_text(encoding="utf-8")
    sections = re.findall(r"### \w+, multi30k-like, ms\n\n\| beams \|(.*?)\n\n", page, re.DOTALL)
    ratios = {"ReLUFormer int8 over CTranslate2 int8": [], "ReLUFormer float32 over CTranslate2 float32": []}
    for header, _, *rows in map(str.splitlines, sections):
        for name, found in ratios.items():
            column = ["beams", *header.strip(" |").split(" | ")].index(name)
            found += [float(row.strip("| ").split(" | ")[column].split(" (")[0]) for row in rows]
    assert [len(found) for found in ratios.values()] == [36, 36]
    (least, most), (least_float, most_float) = ((min(found), max(found)) for found in ratios.values())
    assert f"{least:.2f} to {most:.2f} times as fast as CTranslate2 in int8" in README
    assert f"and {least_float:.2f} to {most_float:.2f} times in float32" in README


def test_the_verdicts_are_those_of_the_report():
    rows = re.findall(r"\| ReLUFormer \(arXiv 2302\.06461\) \| (\w+) ((?:\| \d+ ){5})\|", read("docs/reproduction.md"))
    counts = {about: re.findall(r"\d+", numbers) for about, numbers in rows}
    agrees, disagrees, undecided, missing, every = counts["BLEU"]
    assert f"The paper's {counts['all'][-1]} claims" in README
    said = f"of {every} about BLEU {agrees} agree, {disagrees} disagree, {undecided} are undecided, and"
    assert f"{said} {missing} were not measured;" in README
    agrees, disagrees, *_, every = counts["mechanism"]
    assert f"of {every} about mechanisms {agrees} agree and {disagrees} disagree" in README
    agrees, _, undecided, *_, every = counts["speed"]
    assert f"of {every} about speed {agrees} agree, and {undecided} are undecided" in README
