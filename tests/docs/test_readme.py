"""The first pages: short, their links lead somewhere, and what their sentences say is what the tables of the results
show."""

import json
import re

import pytest

from benchmarks import deciding
from benchmarks.studies import evidence

from .pages import ROOT


def read(name):
    """A page in one line: sentences break anywhere."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


README, DECIDING, EVIDENCE = read("README.md"), read("docs/when_to_use.md"), read("docs/evidence.md")


def test_the_first_page_is_short():
    """All is counted: code, tables, addresses."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def anchors(path):
    """What a link to a heading of a page is called, by GitHub and by the site."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["README.md", "docs/when_to_use.md", "docs/evidence.md"])
def test_links_lead_to_headings_that_are_there(page):
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    ours = [link.partition("#") for link in links if not link.startswith("https://arxiv.org/")]
    assert len(ours) > 20
    missing = []
    for file, _, heading in ours:
        path = (ROOT / page).parent / file if file else ROOT / page
        if not path.is_file() or (heading and heading not in anchors(path)):
            missing.append(f"{file}#{heading}")
    assert missing == []


def rows_of(table):
    """Cells of a generated table of docs/evidence.md, by what stands in the first column."""
    lines = (ROOT / "docs/evidence.md").read_text(encoding="utf-8")
    block = lines.partition(f"<!-- generated: {table} -->\n")[2].partition("<!-- end of generated -->")[0]
    return {row.split(" | ")[0].removeprefix("| "): row.split(" | ") for row in block.splitlines()[2:]}


MULTI30K = rows_of("evidence multi30k")["10,000 updates, until validation hardly improves"]
TATOEBA = rows_of("evidence tatoeba")["10,000 updates"]
DOCUMENTS, PICTURES = rows_of("evidence documents"), rows_of("evidence pictures")
LANGUAGE, FEW, RELU2 = (rows_of(f"evidence {name}") for name in ("language models", "few updates", "relu2"))
# What the verdict says of a row of evidence.md; {gain}: of softmax, or of ReLU where that is ahead.
EARLY, BY_SENTENCE = (
    FEW["800 updates, γ = 16, half the learning rate"],
    DOCUMENTS["models of 128 tokens, sentence by sentence"],
)
SAID = [
    (
        MULTI30K,
        "[{gain} BLEU](evidence.md#multi30k) ahead of ReLU on Multi30k "
        "({theirs} against {ours}; {seeds}, 95 % interval {low} to {high})",
    ),
    (
        TATOEBA,
        "[{gain}](evidence.md#tatoeba) on Tatoeba ({theirs} against {ours}; {seeds}, {low} to {high}). Neither "
        "result is conclusive alone. Together they are",
    ),
    (
        EARLY,
        "[{gain} BLEU](evidence.md#few-updates) ahead after 800 updates on Multi30k ({seeds}, half the usual "
        "learning rate)",
    ),
    (BY_SENTENCE, "[{gain} BLEU](evidence.md#documents) if documents are split into sentences ({seeds})"),
    (DOCUMENTS["128 tokens"], "it is ahead by {gain} to"),
    (DOCUMENTS["1,024 tokens"], "to {gain}, within the noise of {seeds}"),
    (
        PICTURES["49 patches"],
        "[{gain} points](evidence.md#pictures) of accuracy ahead with 49 patches ({seeds}, p < 0.001)",
    ),
    (PICTURES["196 patches"], "{gain} with 196 ({seeds}, p < 0.001)"),
    (PICTURES["784 patches, one epoch"], "ReLU is ahead by {gain} with 784 patches ({seeds}, one epoch)"),
    (PICTURES["49 patches, more epochs of ReLU"], "ReLU is {gain} points ahead with 49 patches, too ({seeds})"),
    (RELU2["Multi30k, dropout 0.1"], "only [{gain} BLEU](evidence.md#relu-squared-on-sentences) on Multi30k"),
    (RELU2["Tatoeba, dropout 0.1"], "and {gain} on Tatoeba ({seeds} each, within the noise)"),
    (LANGUAGE["GELU in the feed-forward network"], ": {theirs} with softmax, {ours} with ReLU ({seeds}"),
    (LANGUAGE["… ReLU² with λ = 0.01"], ": {ours} with ReLU², {theirs} with softmax ({seeds}"),
]


@pytest.mark.parametrize("page", [README.replace("docs/", ""), DECIDING], ids=["README", "when_to_use"])
@pytest.mark.parametrize(("row", "words"), SAID, ids=[words for _, words in SAID])
def test_the_verdict_is_that_of_the_evidence(page, row, words):
    theirs, ours, gain = (re.search(r"\d+\.\d+", cell)[0] for cell in row[1:4])
    # the interval is of ReLU less softmax, and the verdict tells what softmax is ahead by
    interval = re.search(r"interval −([\d.]+) to \+([\d.]+)", row[4])
    low, high = (f"−{interval[2]}", interval[1]) if interval else (None, None)
    seeds = re.match(r"(one|two|three) seeds?", row[4])[0]
    values = {"theirs": theirs, "ours": ours, "gain": gain, "low": low, "high": high, "seeds": seeds}
    assert words.format(**values) in page
    assert not re.search("noise|conclusive", words) or re.search("within|differ too much", row[4])


def test_signs_are_as_the_verdict_says():
    softmax_ahead = [MULTI30K, TATOEBA, *list(DOCUMENTS.values()), PICTURES["49 patches"], PICTURES["196 patches"]]
    assert all(row[3].startswith("−") for row in softmax_ahead)
    assert all(
        "differ too much" in DOCUMENTS[length][4]
        for length in ("128 tokens", "256 tokens", "512 tokens", "1,024 tokens")
    )
    assert EARLY[3].startswith("+")
    assert FEW["2,400 updates, γ = 8, the whole rate"][3].startswith("−"), "softmax is ahead after 2,400 updates"
    assert LANGUAGE["GELU in the feed-forward network"][3].startswith("+"), "ReLU has the higher perplexity"
    assert LANGUAGE["… ReLU² with λ = 0.01"][3].startswith("−")


def test_how_many_pairs_of_one_seed_softmax_leads():
    pattern = r"ahead of ReLU in (\d) of the (\d) pairs .*? \(paired t test, (p = [\d.]+);"
    ahead, count, p_value = re.search(pattern, EVIDENCE).groups()
    for page in (README, DECIDING):
        assert f"[{ahead} of {count} seed pairs]" in page and f"(paired t test, {p_value})" in page


def test_what_sentences_say_of_relu2():
    for name in ("evidence relu2", "evidence relu2 over relu"):
        sentences = [row for task, row in rows_of(name).items() if "documents" not in task]
        assert len(sentences) == 3 and all("95 % interval" in row[4] and "noise" in row[4] for row in sentences)
    documents = rows_of("evidence relu2 over relu")["documents of 128 tokens, ReLU with λ = 0.01"]
    assert documents[3].startswith("−") and "agree" in documents[4]
    losses = {row[0].removeprefix("| "): float(row[2]) for row in rows_of("evidence gamma of relu2").values()}
    assert min(losses, key=losses.get) == "γ = 32, λ = 0.1"
    assert "validation would have chosen γ = 32" in EVIDENCE


def test_where_softmax_overtakes_relu_is_what_the_caption_says():
    leads = {corpus: deciding.validation_leads(*rows) for corpus, rows in deciding.COURSES.items()}
    first = {corpus: min(step for step, lead in each.items() if sum(lead) < 0) for corpus, each in leads.items()}
    assert first == {"Multi30k": 2000, "Tatoeba": 5000}
    assert "within the first 2,000 updates on Multi30k, and after about 5,000 on Tatoeba" in DECIDING
    assert "from about 2,000 updates on with Multi30k, and from about 5,000 on with Tatoeba" in DECIDING
    assert all(len(lead) == 3 and min(lead) > 0 for lead in (each[1000] for each in leads.values()))


def test_no_model_reads_the_first_half_of_its_document():
    gains = [float(row[1].split()[0].replace("−", "-")) for row in rows_of("evidence first half").values()]
    assert len(gains) == 6 and max(gains) < 0.01, "the page says less than a hundredth of a nat"


def test_the_papers_main_claim_is_about_long_documents_and_undecided():
    report = read("docs/reproduction.md")
    table_6 = report.partition("### Table 6")[2].partition("###")[0]
    words = re.findall(r"\*\*(agrees|disagrees|undecided|not measured|pending)\*\*", table_6)
    assert len(words) == 11 and set(words) == {"undecided", "not measured"}
    assert "Its main one, that ReLUFormer is ahead on long documents, is undecided" in README
    assert "[none of its eleven statements about them]" in DECIDING


def test_the_highest_speed_of_training_is_the_one_with_attention_dropout():
    rows = deciding.overview_rows()
    assert len(rows) == 11
    assert max(rows, key=lambda row: row.ratios["training", "float32"]).name == "translation, documents of 1,024 tokens"
    ours, marian = deciding.document_training("vanilla"), deciding.document_training("MarianMTModel sdpa")
    assert ours.keys() == {"0.1"}, "the page says that only MarianMTModel was measured without dropout"
    assert marian["0.1"] > ours["0.1"] > 1.5 * marian["0.0"], "it says that MarianMTModel is slower than our class"
    assert all(row.ratios["use", "float32"] <= 1.01 for row in rows if row.kind != "images")
    assert all(row.ratios["training", "float32"] > 1 for row in rows)
    assert all((row.ratios["use", "bfloat16"] < 1) == ("language model" in row.name) for row in rows)


def test_from_what_length_attention_is_faster_is_what_the_caption_says():
    assert "ReLU attention alone is faster than softmax from 128 tokens on" in DECIDING
    assert "Training in bfloat16 gains most, at every length" in DECIDING
    for file in deciding.measured_attention():
        ratios = {
            (task, dtype): deciding.attention_cells(file, ours, which, dtype)
            for task, ours, which in (("training", "fused+S+T", "forward+backward"), ("inference", "fused", "forward"))
            for dtype in ("float32", "bfloat16")
        }
        for key, cells in ratios.items():
            assert all(cell["median"] > 1 for length, cell in cells.items() if length >= 128), (file, key)
        for length, most in ratios["training", "bfloat16"].items():
            assert most["median"] == max(cells[length]["median"] for cells in ratios.values()), (file, length)


def test_attention_on_a_gpu_is_told_with_and_without_what_the_default_training_needs():
    measured = json.loads((ROOT / "benchmarks/results/gpu/attention.json").read_text(encoding="utf-8"))
    cells = [cell["ms"]["forward+backward"] for cell in measured["cells"]]
    for page in (README, EVIDENCE):
        for rival in ("FlashAttention-2", "cuDNN"):
            ratios = [sorted(f"{each[rival] / each[ours]:.2f}" for each in cells) for ours in ("fused+S+T", "fused")]
            (row,) = re.findall(rf"\| attention alone, training, 16,384 tokens \| {rival} \| (.*?) \|(?: \||$)", page)
            assert [re.findall(r"\[(.*?) to (.*?)\]", cell)[0] for cell in row.split(" | ")] == [
                (each[0], each[-1]) for each in ratios
            ]
        assert "bfloat16" in page and "dropout" in page and "padding" in page
        assert "eneration 0.7" not in page, "it was measured before its launches were halved"


def test_from_what_length_on_relu_is_faster():
    assert deciding.faster_from({16: 0.8, 32: 1.1, 64: 0.9, 128: 1.2, 256: 1.3}) == 128


@pytest.fixture
def result(monkeypatch):
    """What a result file holds: times by threads, in which ours is faster with two threads and the rival with one."""
    names = {"shape": "tiny", "inputs": "sentences", "beams": 5, "sentences": 1}
    milliseconds = {1: {"float32": (8.0, 6.0), "int8": (3.0, 5.0)}, 2: {"float32": (4.0, 9.0), "int8": (4.0, 9.0)}}
    cells = []
    for threads, by_type in milliseconds.items():
        times, speedups = {}, {}
        for kind, (ours, theirs) in by_type.items():
            times |= {f"ReLUFormer {kind}": {"median_ms": ours}, f"CTranslate2 {kind}": {"median_ms": theirs}}
            speedups[f"ReLUFormer {kind}"] = {f"CTranslate2 {kind}": {"median": theirs / ours}}
        cells.append({**names, "threads": threads, "times": times, "speedups": speedups})
    monkeypatch.setattr(deciding, "read_result", lambda path: {"cells": cells})


def test_each_program_is_taken_at_its_better_number_of_threads(result):
    assert deciding.better_threads("any") == {"float32": [1.5], "int8": [5 / 3]}
    assert deciding.equal_threads("any")["float32"] == [0.75, 2.25]
    assert deciding.better_threads("any", "other inputs") == {"float32": [], "int8": []}


def test_a_quoted_interval_is_of_softmaxs_lead(monkeypatch):
    class Found:
        p_value = 0.0123

        def interval(self, percent):
            return (-2.0, 0.5)

    results = ([{"bleu": {"score": score}} for score in side] for side in ((40.0, 42.0), (39.0, 41.5)))
    monkeypatch.setattr(evidence, "results_of", lambda pair: tuple(results))
    monkeypatch.setattr(evidence, "comparison", lambda pair: Found())
    quoted = deciding.Quoted("multi30k")
    assert (quoted.softmax, quoted.relu, quoted.low, quoted.high) == (0.75, -0.75, -0.5, 2.0)
    assert (quoted.seeds, quoted.p) == ("two seeds", "p = 0.012")
