"""Where sources that are too long begin, and the pieces they are split into."""

import pytest

from reluformer.configuration.errors import UserError
from reluformer.translating.source_encoding import Source, SourceEncoder


def words_and_end(texts, verbose=True):
    """A tokenizer of one token a word, which is the word, with `</s>`."""
    assert not verbose, "it would warn of every long text, which is split"
    return {"input_ids": [[*text.split(), "</s>"] for text in texts]}


def test_a_source_of_just_as_many_tokens_as_positions_fits():
    encoder = SourceEncoder(words_and_end, 4)
    assert encoder.encode(["a b c", " "]) == ([Source([[["a", "b", "c", "</s>"]]], ["", ""]), Source([], [""])], [])
    with pytest.raises(UserError, match=r"1 of 2 sources have .* the 4 positions of the model: number 2 \(5 tokens\)"):
        encoder.encode(["a b c", "a b c d"])


def test_the_first_five_sources_that_are_too_long_are_named_and_the_others_counted():
    with pytest.raises(
        UserError, match=r"8 of 9 .*: number 2 \(5 tokens\), 3 .*, 4 .*, 5 .*, 6 .* and 3 more, counted"
    ):
        SourceEncoder(words_and_end, 4).encode(["a", *["a b c d"] * 8])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Wir sehen euch. Kommt", ["Wir sehen euch.", "Kommt"]),
        ("Nein. Doch. Gut. Kommt", ["Nein. Doch. Gut.", "Kommt"]),
        # no empty piece before a first sentence that is too long
        ("Wir sehen euch hier. Kommt", ["Wir sehen euch", "hier.", "Kommt"]),
        # nor between two of them
        ("Wir sehen euch hier. Kommt ihr auch mit", ["Wir sehen euch", "hier.", "Kommt ihr auch", "mit"]),
        ("Nein. Wir sehen euch hier. Gut", ["Nein.", "Wir sehen euch", "hier.", "Gut"]),
        # what is no sentence stays, too
        ("- Wir sehen *** Kommt", ["- Wir sehen", "*** Kommt"]),
        ("- Ja.\n***\nKommt", ["- Ja. ***", "Kommt"]),
        ("***\nWir sehen euch", ["*** Wir sehen", "euch"]),
        ("* * * * *", ["* * *", "* *"]),
    ],
)
def test_as_many_sentences_as_fit_are_a_piece(text, pieces):
    (source,), shortened = SourceEncoder(words_and_end, 4, "split", language="de").encode([text])
    assert source.units == [[[*piece.split(), "</s>"] for piece in pieces]] and shortened == [1]


def test_of_sentences_the_numbers_and_lengths_are_those_of_texts():
    texts = ["Nein. Wir sehen euch. Gut.", "Ja.", "", "Nein. Wir sehen euch hier. Wir sehen euch alle hier."]
    encoder = SourceEncoder(words_and_end, 4, split="sentences")
    with pytest.raises(UserError, match=r"1 of 4 sources hold a sentence with more .* number 4 \(6 tokens\), counted"):
        encoder.encode(texts)
    sources, shortened = SourceEncoder(words_and_end, 4, "split", split="sentences").encode(texts)
    assert shortened == [4]
    words = [[[" ".join(piece[:-1]) for piece in unit] for unit in source.units] for source in sources]
    assert words[0] == [["Nein."], ["Wir sehen euch."], ["Gut."]] and words[2] == []
    assert words[3] == [["Nein."], ["Wir sehen euch", "hier."], ["Wir sehen euch", "alle hier."]]


@pytest.mark.parametrize(
    ("spaces", "joined"),
    [
        (["\n", " ", "\t\n"], "\none two\t\n"),
        (["", "", ""], "one two"),  # nothing divided them
    ],
)
def test_white_space_between_sentences_is_kept_and_one_is_put_where_none_was(spaces, joined):
    assert Source([[[1]], [[2]]], spaces).joined(["one", "two"]) == joined
    assert Source([], [" \n"]).joined([]) == " \n"
