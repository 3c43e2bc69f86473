"""Where sources that are too long begin, and the pieces they are split into."""

import pytest

from reluformer.configuration.errors import UserError
from reluformer.training.scoring.long_sources import SourceEncoder


def words_and_end(texts, verbose=True):
    """A tokenizer of one token a word, which is the word, with `</s>`."""
    return {"input_ids": [[*text.split(), "</s>"] for text in texts]}


def test_a_source_of_just_as_many_tokens_as_positions_fits():
    encoder = SourceEncoder(words_and_end, 4)
    assert encoder.encode(["a b c", " "]) == ([[["a", "b", "c", "</s>"]], []], [])
    with pytest.raises(UserError, match=r"1 of 2 sources .* the 4 positions of the model: number 2 \(5 tokens\)"):
        encoder.encode(["a b c", "a b c d"])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a b c. d", ["a b c.", "d"]),
        ("a. b. c. d", ["a. b. c.", "d"]),
        ("a b c d. e", ["a b c", "d.", "e"]),  # no empty piece before a first sentence that is too long
        ("a b c d. e f g h", ["a b c", "d.", "e f g", "h"]),  # nor between two of them
        ("a. b c d e. f", ["a.", "b c d", "e.", "f"]),
    ],
)
def test_as_many_sentences_as_fit_are_a_piece(text, pieces):
    (split,), shortened = SourceEncoder(words_and_end, 4, "split").encode([text])
    assert split == [[*piece.split(), "</s>"] for piece in pieces] and shortened == [1]
