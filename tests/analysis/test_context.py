"""The analyses `context` and `random-context`: against each document by hand, and what is crossed with what."""

from itertools import groupby

import datasets
import pytest
import torch
from torch.nn.functional import cross_entropy

from reluformer.analysis import inputs
from reluformer.analysis.inputs import Subject
from reluformer.analysis.likelihood import context, crossings, gain_table, random_context
from reluformer.configuration.errors import UserError
from reluformer.training.data.documents import pack_documents
from reluformer.training.data.encoding import encode_pairs

from .small_models import SOURCES, TARGETS, make_model

TEXTS = [
    ("a", "ein hund", "a dog"),
    ("a", "zwei hunde im schnee", "two dogs in the snow"),
    ("b", "schnee", "snow"),
    ("b", "ein mann", "a man"),
    ("b", "zwei hunde", "two dogs"),
    ("c", "kinder im schnee", "children in the snow"),  # nothing else begins with as many tokens
]


def subject_of(kind, tokenizer, texts):
    """A model and packed texts (document, source, target), and the encoded sentences of each document."""
    model, columns = make_model(kind, len(tokenizer)), zip(*texts, strict=True)
    lines = datasets.Dataset.from_dict(dict(zip(("document", "source", "target"), map(list, columns), strict=True)))
    documents = pack_documents(lines, tokenizer, max_tokens=40, too_long="skip", name="text")
    encoded, _ = encode_pairs(documents.pairs, tokenizer, max_length=64, name="text")
    pairs = list(zip(encoded["input_ids"], encoded["labels"], strict=True))
    sides = tokenizer(lines["source"][:])["input_ids"], tokenizer(text_target=lines["target"][:])["input_ids"]
    encoded = zip(texts, zip(*sides, strict=True), strict=True)
    parts = [[pair for _, pair in group] for _, group in groupby(encoded, key=lambda row: row[0][0])]
    subject = Subject(model, tokenizer=tokenizer, pairs=pairs, documents=documents)
    return subject, parts


def nll_of(model, source, target):
    """−log p of each token of `target` but its end token, by the model's own loss on this pair alone."""
    labels = torch.tensor([target])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([source]), labels=labels).logits[0].double()
    return cross_entropy(logits, labels[0], reduction="none")[:-1].tolist()


def tokens_of(sentences, side):
    return [token for pair in sentences for token in pair[side][:-1]]


def assert_means(table, column, rows):
    """rows: (place, in the document, otherwise) of each token."""
    for row in table:
        first, last = (1, 99) if row["last"] is None else (row["last"] // 2 + 1, row["last"])
        chosen = [both for place, *both in rows if first <= place <= last]
        within, otherwise = (sum(values) / len(chosen) for values in zip(*chosen, strict=True))
        assert row["tokens"] == len(chosen)
        assert row["nll"] == pytest.approx(within, rel=1e-5)
        assert row[column] == pytest.approx(otherwise, rel=1e-5)
        assert row["gain"] == pytest.approx(otherwise - within, abs=1e-5)


@pytest.mark.parametrize(("kind", "batch_tokens"), [("reluformer", 1), ("marian", 2048)])
def test_context_is_the_likelihood_of_each_document_and_of_each_sentence_alone(
    kind, batch_tokens, small_tokenizer, monkeypatch
):
    monkeypatch.setattr(inputs, "BATCH_TOKENS", batch_tokens)
    subject, parts = subject_of(kind, small_tokenizer, list(zip("aabcc", SOURCES, TARGETS, strict=True)))
    end, rows = small_tokenizer.eos_token_id, []
    for part in parts:
        within = nll_of(subject.model, *([*tokens_of(part, side), end] for side in (0, 1)))
        alone = [nll for pair in part for nll in nll_of(subject.model, *pair)]
        rows += [(place, *both) for place, both in enumerate(zip(within, alone, strict=True), 1)]
    table = context(subject).table
    assert [row["positions"] for row in table][:6] == ["all", "1", "2", "3-4", "5-8", "9-16"]
    assert_means(table, "nll_alone", rows)


def test_the_error_of_the_gain_by_hand():
    within = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0]), torch.tensor([0.5, 1.5])]
    alone = [torch.tensor([1.5, 2.0, 4.0]), torch.tensor([2.5]), torch.tensor([0.0, 2.5])]
    whole, first, second, last = gain_table(within, alone, "nll_alone")
    assert (whole["tokens"], whole["gain"]) == (6, pytest.approx(2.5 / 6))
    gain = 2.5 / 6
    residuals = [1.5 - 3 * gain, 0.5 - gain, 0.5 - 2 * gain]
    assert whole["gain_error"] == pytest.approx((1.5 * sum(each**2 for each in residuals)) ** 0.5 / 6)
    assert (first["positions"], first["tokens"], first["gain"]) == ("1", 3, pytest.approx(0.5 / 3))
    assert (second["positions"], second["nll"], second["nll_alone"]) == ("2", 1.75, 2.25)
    # of two documents, of which one is the third
    assert second["gain_error"] == pytest.approx((2 * (0.5**2 + 0.5**2)) ** 0.5 / 2)
    assert (last["positions"], last["gain"], last["gain_error"]) == ("3-4", 1.0, None)
    assert [row["last"] for row in (whole, first, second, last)] == [None, 1, 2, 4]


# random-context


def document(*lengths):
    """Sentences of so many source and target tokens, and an end token each."""
    return [([5] * source + [2], [6] * target + [2]) for source, target in lengths]


def test_what_is_crossed_with_what():
    parts = [
        document((4, 4), (4, 4), (4, 4), (14, 5)),  # cut behind 8 of 17 target tokens
        document((9, 9), (9, 9)),  # packed of the same document
        document((3, 3), (3, 3)),  # is too short for both
        document((3, 2), (3, 5), (3, 1), (9, 9)),
        document((50, 50)),  # has no second half
    ]
    assert list(crossings(parts, ["a", "a", "b", "c", "d"])) == [
        (0, 2, 3),
        (1, 1, 4),
        (2, 1, 0),  # from the first again
        (3, 3, 1),
    ]
    # the pieces of two documents take turns
    found = list(crossings([parts[2]] * 9, ["a"] * 4 + ["b"] * 5))
    assert [other for _, _, other in found] == [4, 5, 6, 7, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("side", [0, 1])
def test_both_sides_have_to_be_long_enough(side):
    short = ((9, 1), (1, 9))[side]
    parts = [document((4, 4), (4, 4)), document(short, short), document((2, 2), (2, 3), (2, 2))]
    assert next(crossings(parts, list("abc"))) == (0, 1, 2)


@pytest.mark.parametrize("kind", ["reluformer", "marian"])
def test_random_context_is_the_likelihood_behind_both_beginnings(kind, small_tokenizer):
    subject, parts = subject_of(kind, small_tokenizer, TEXTS)
    found, end, rows = list(crossings(parts, ["a", "b", "c"])), small_tokenizer.eos_token_id, []
    assert len(found) == 2
    for at, cut, foreign in found:
        own = parts[at]
        before = [tokens_of(own[:cut], side) for side in (0, 1)]
        other = [tokens_of(parts[foreign], side)[-len(before[side]) :] for side in (0, 1)]
        assert [len(each) for each in other] == [len(each) for each in before] and other != before
        within, random = (
            nll_of(subject.model, *([*each[side], *tokens_of(own[cut:], side), end] for side in (0, 1)))
            for each in (before, other)
        )
        behind = [nll[len(before[1]) :] for nll in (within, random)]
        rows += [(place, *both) for place, both in enumerate(zip(*behind, strict=True), 1)]
    taken = random_context(subject)
    assert taken.notes == ["random-context reads 2 of 3 packed documents"]
    assert_means(taken.table, "nll_random", rows)
    assert abs(taken.table[0]["gain"]) > 1e-3, "the beginning changes what is predicted"


@pytest.mark.parametrize("documents", ["aaaaaa", "abcdef"])
def test_what_cannot_be_crossed(documents, small_tokenizer):
    texts = [(name, *text[1:]) for name, text in zip(documents, TEXTS, strict=True)]
    with pytest.raises(UserError, match="has two sentences and another document that is as long as its first half"):
        random_context(subject_of("reluformer", small_tokenizer, texts)[0])
