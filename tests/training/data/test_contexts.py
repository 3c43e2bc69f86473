"""Contexts: every token of the stream but the first is predicted exactly once, whatever is left at its end."""

import pytest

from reluformer.training.byte_tokenizer import train_byte_tokenizer
from reluformer.training.data.contexts import pack_contexts
from reluformer.training.data.text_sources import Document, Documents

TEXTS = ["one", "", "two two", "öl", None, "x"]


@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize("max_length", range(2, 11))
def test_each_token_is_predicted_once(max_length, evaluated):
    tokenizer = train_byte_tokenizer(iter(["one one two two"]), vocab_size=259, max_length=max_length)
    documents = [Document(str(number), text) for number, text in enumerate(TEXTS)]
    packed = pack_contexts(
        Documents({"texts": TEXTS}, lambda: iter(documents)),
        tokenizer,
        max_length=max_length,
        name="texts",
        evaluated=evaluated,
    )
    end, kept = tokenizer.eos_token_id, [text for text in TEXTS if text]
    stream = [end]
    for text in kept:
        stream += [*tokenizer(text, add_special_tokens=False)["input_ids"], end]
    size, rows = max_length - 1, packed.rows["input_ids"][:]
    expected = [stream[start : start + max_length] for start in range(0, len(stream) - 1, size)]
    if not evaluated:
        expected = [row for row in expected if len(row) == max_length]
        assert packed.report.left_out == (len(stream) - 1) % size
    assert rows == expected
    assert packed.report.tokens == len(stream) - 1
    assert packed.report.bytes == sum(len(text.encode()) for text in kept)
