"""The figure `random-context`: where documents are crossed, the likelihood behind both beginnings by hand, and wrong input."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from reluformer.analysis.likelihood import Crossing, crossings
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
        document((4, 4), (4, 4), (4, 4), (14, 5)),  # cut behind 8 of 17 target tokens
        document((9, 9), (9, 9)),  # packed of the same document
        document((3, 3), (3, 3)),  # is too short for both
        document((3, 2), (3, 5), (3, 1), (9, 9)),  # three sentences have 9 source tokens, two of them 7 target tokens
        document((50, 50)),  # has no second half
    ]
    assert list(crossings(parts, ["a", "a", "b", "c", "d"])) == [
        Crossing(at=0, cut=2, other=3, reach=3),
        Crossing(at=1, cut=1, other=4, reach=1),
        Crossing(at=2, cut=1, other=0, reach=1),  # from the first again
        Crossing(at=3, cut=3, other=1, reach=1),
    ]
    assert next(crossings([parts[3], parts[0], parts[0][:1]], ["c", "a", "b"])) == Crossing(0, 3, other=1, reach=3)
    last = list(crossings([parts[0], parts[2]], ["a", "b"]))[-1]
    assert last == Crossing(at=1, cut=1, other=0, reach=1)


def test_the_pieces_of_two_documents_take_turns():
    pieces = [document((3, 3), (3, 3))] * 9
    found = list(crossings(pieces, ["a"] * 4 + ["b"] * 5))
    assert [each.other for each in found] == [4, 5, 6, 7, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("side", [0, 1])
def test_both_sides_have_to_be_long_enough(side):
    short = ((9, 1), (1, 9))[side]
    parts = [document((4, 4), (4, 4)), document(short, short), document((2, 2), (2, 3), (2, 2))]
    assert next(crossings(parts, list("abc"))) == Crossing(at=0, cut=1, other=2, reach=2)


def tokens_of(sentences, side):
    return [token for pair in sentences for token in pair[side][:-1]]


def nll_behind(model, before, behind, end):
    """−log p of the target tokens of the sentences `behind`; before: source and target tokens that stand there."""
    source, target = ([*before[side], *tokens_of(behind, side), end] for side in (0, 1))
    labels = torch.tensor([target])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([source]), labels=labels).logits[0].double()
    nll = cross_entropy(logits, labels[0], reduction="none")[:-1].tolist()
    return nll[len(before[1]) :]


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
        own, foreign = parts[crossing.at], parts[crossing.other][: crossing.reach]
        before = [tokens_of(own[: crossing.cut], side) for side in (0, 1)]
        other = [tokens_of(foreign, side)[-len(before[side]) :] for side in (0, 1)]
        assert [len(each) for each in other] == [len(each) for each in before] and other != before
        within, random = (nll_behind(model, each, own[crossing.cut :], end) for each in (before, other))
        assert len(within) == len(random)
        rows += [(place, *both) for place, both in enumerate(zip(within, random, strict=True), 1)]
    status, told = analyze(folder, DOCUMENTS, "--batch_tokens", batch_tokens)
    assert status == 0, told
    written = json.loads((folder / "analysis" / "random-context.json").read_text())
    assert (written["crossed_documents"], written["crossed_with"], written["left_out"]) == (
        2,
        len({each.other for each in found}),
        1,
    )
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
