"""The figure `random-context`: where documents are crossed, the likelihood behind both beginnings by hand, and wrong input."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from reluformer.analysis.random_context import Crossing, crossings
from reluformer.commands import main as cli

from .small_models import make_model, save_model

TEXTS = [
    ("a", "ein hund", "a dog"),
    ("a", "zwei hunde im schnee", "two dogs in the snow"),
    ("b", "schnee", "snow"),
    ("b", "ein mann", "a man"),
    ("b", "zwei hunde", "two dogs"),
    ("c", "kinder im schnee", "children in the snow"),  # nothing else begins with as many tokens
]
DOCUMENTS, SOURCES, TARGETS = (list(column) for column in zip(*TEXTS, strict=True))


def document(*lengths):
    """Sentences of so many source and target tokens, and an end token each."""
    return [{"input_ids": [5] * source + [2], "labels": [6] * target + [2]} for source, target in lengths]


def test_what_is_crossed_with_what():
    parts = [
        document((4, 4), (4, 4), (4, 4), (4, 5)),  # cut behind 8 of 17 target tokens
        document((9, 9), (9, 9)),  # packed of the same document
        document((3, 3), (3, 3)),  # is too short for both
        document((3, 2), (3, 3), (3, 1), (9, 9)),  # three sentences have 9 source tokens
        document((50, 50)),  # has no second half, and begins with too long a sentence
    ]
    assert list(crossings(parts, ["a", "a", "b", "c", "d"])) == [
        Crossing(at=0, cut=2, other=3, taken=2),
        Crossing(at=1, cut=1, other=3, taken=3),
        Crossing(at=2, cut=1, other=3, taken=1),
        Crossing(
            at=3, cut=3, other=0, taken=1
        ),  # 9 and 6 tokens stand before the cut: the first fits, from the front again
    ]


@pytest.mark.parametrize("side", [0, 1])
def test_both_sides_have_to_fit(side):
    long, short = ((5, 1), (1, 5))[side], ((1, 5), (5, 1))[side]
    parts = [document((4, 4), (4, 4)), document(long, long), document(short, (9, 9)), document((2, 2), (2, 3), (2, 2))]
    first = next(crossings(parts, list("abcd")))
    assert first == Crossing(at=0, cut=1, other=3, taken=1)


def nll_behind(model, sentences, cut, end):
    """−log p of the target tokens behind the first `cut` sentences."""
    source, target = ([*(token for pair in sentences for token in pair[side][:-1]), end] for side in (0, 1))
    labels = torch.tensor([target])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([source]), labels=labels).logits[0].double()
    nll = cross_entropy(logits, labels[0], reduction="none")[:-1].tolist()
    return nll[sum(len(pair[1]) - 1 for pair in sentences[:cut]) :]


@pytest.fixture
def analyze(tmp_path, capsys):
    def run(folder, documents, *more):
        command = ["analyze", "--what", "random-context", "--model", str(folder), *more]
        for name, lines in (("text", SOURCES), ("target_text", TARGETS), ("documents", documents)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
            command += [f"--{name}", str(tmp_path / name)] if documents or name != "documents" else []
        return cli.main(command), capsys.readouterr().err

    return run


@pytest.mark.parametrize("kind", ["reluformer", "vanilla", "marian"])
@pytest.mark.parametrize("batch_tokens", ["2048", "1"])
def test_it_is_the_likelihood_behind_both_beginnings(kind, batch_tokens, analyze, small_tokenizer, tmp_path):
    folder = save_model(tmp_path / kind, kind, small_tokenizer)
    model, end = make_model(kind, len(small_tokenizer)), small_tokenizer.eos_token_id
    sides = (small_tokenizer(SOURCES)["input_ids"], small_tokenizer(text_target=TARGETS)["input_ids"])
    encoded = list(zip(*sides, strict=True))
    parts = [encoded[:2], encoded[2:5], encoded[5:]]
    as_read = [[{"input_ids": pair[0], "labels": pair[1]} for pair in part] for part in parts]
    found = list(crossings(as_read, ["a", "b", "c"]))
    assert len(found) == 2
    rows = []
    for crossing in found:
        own, other = parts[crossing.at], parts[crossing.other][: crossing.taken]
        assert other != own[: crossing.cut]
        within = nll_behind(model, own, crossing.cut, end)
        random = nll_behind(model, [*other, *own[crossing.cut :]], crossing.taken, end)
        assert len(within) == len(random)
        rows += [(place, *both) for place, both in enumerate(zip(within, random, strict=True), 1)]
    status, told = analyze(folder, DOCUMENTS, "--batch_tokens", batch_tokens)
    assert status == 0, told
    written = json.loads((folder / "analysis" / "random-context.json").read_text())
    assert (written["crossed_documents"], written["left_out"]) == (2, 1)
    for row in written["table"]:
        first, last = (1, 99) if row["last"] is None else (row["last"] // 2 + 1, row["last"])
        chosen = [both for place, *both in rows if first <= place <= last]
        within, random = (sum(column) / len(chosen) for column in zip(*chosen, strict=True))
        assert row["tokens"] == len(chosen)
        assert row["nll"] == pytest.approx(within, rel=1e-5)
        assert row["nll_random"] == pytest.approx(random, rel=1e-5)
        assert row["gain"] == pytest.approx(random - within, abs=1e-5)
    assert abs(written["table"][0]["gain"]) > 1e-3, "the beginning changes what is predicted"
    assert (folder / "analysis" / "random-context.png").stat().st_size > 10_000


def test_what_cannot_be_crossed(analyze, small_tokenizer, tmp_path):
    folder = save_model(tmp_path / "model", "reluformer", small_tokenizer)
    status, told = analyze(folder, [])
    assert status == 2 and "--documents: missing; random-context needs" in told
    for documents in (["a"] * 6, list("abcdef")):
        status, told = analyze(folder, documents)
        assert status == 2 and "has two sentences and another document that is as long as its first half" in told
