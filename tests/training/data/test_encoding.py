"""Token ids of pairs: none is cut, every skip is counted, and any number of workers gives the same."""

import datasets
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from reluformer.configuration.errors import UserError
from reluformer.training.data import encoding
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.training.data.encoding import encode_pairs, first_encoded_pairs, token_lengths

from ...conftest import demo_tokenizer

LIMIT = 20


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def tokenizer():
    return demo_tokenizer(100)


@pytest.fixture
def pairs():
    """Rows on disk, of which some are too long and one has no token on a side."""
    rows = demo_pairs(500, split="train", seed=1).to_dict()
    rows["target"][7] = "\u2028"
    return datasets.Dataset.from_generator(lambda: iter(datasets.Dataset.from_dict(rows)))


def expected_rows(pairs, tokenizer):
    ids = [(tokenizer(row["source"])["input_ids"], tokenizer(row["target"])["input_ids"]) for row in pairs]
    return {row: sides for row, sides in enumerate(ids) if min(map(len, sides)) > 1 and max(map(len, sides)) <= LIMIT}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_ids_are_the_tokenizers_and_every_skip_is_counted(pairs, tokenizer, workers):
    expected = expected_rows(pairs, tokenizer)
    encoded, report = encode_pairs(pairs, tokenizer, max_length=LIMIT, name="train", workers=workers)
    assert encoded.features == encoding.ENCODED_FEATURES
    assert [(row["input_ids"], row["labels"]) for row in encoded] == list(expected.values())
    too_long = f"longer than {LIMIT} tokens"
    assert (report.read, report.kept) == (500, len(expected)) and 20 < report.kept < 480
    assert report.skipped == {too_long: 499 - len(expected), "without any token": 1}
    first = next(row for row in range(500) if row not in expected and row != 7)
    assert report.first == {too_long: first + 1, "without any token": 8}
    for column in ("input_ids", "labels"):
        assert token_lengths(encoded, column).tolist() == [len(ids) for ids in encoded[column]]
    texts = first_encoded_pairs(pairs, tokenizer, max_length=LIMIT, at_most=5)
    assert texts.to_list() == pairs.select(list(expected)[:5]).to_list()


def test_pairs_are_encoded_once_for_a_tokenizer_that_does_the_same(pairs, tokenizer, tmp_path, monkeypatch):
    encoded, _ = encode_pairs(pairs, tokenizer, max_length=LIMIT, name="train")
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    loaded(["1", "2 3"], padding=True, truncation=True, max_length=2)
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "token_ids", lambda *_: pytest.fail("encoded again"))
        again, _ = encode_pairs(pairs, loaded, max_length=LIMIT, name="another name")
    assert again.to_list() == encoded.to_list()
    loaded.add_tokens(["hundert"])
    assert encode_pairs(pairs, loaded, max_length=LIMIT, name="train")[0].to_list() != encoded.to_list()
    longer, _ = encode_pairs(pairs, tokenizer, max_length=LIMIT + 1, name="train")
    assert len(longer) > len(encoded)


def test_nothing_left_is_an_error_and_the_end_counts(tokenizer):
    pairs = datasets.Dataset.from_dict({"source": ["ein"], "target": ["one"]})
    length = max(len(tokenizer(text)["input_ids"]) for text in ("ein", "one"))
    assert encode_pairs(pairs, tokenizer, max_length=length, name="train")[1].kept == 1
    with pytest.raises(UserError, match="empty corpus"):
        encode_pairs(pairs, tokenizer, max_length=length - 1, name="train")


def test_a_tokenizer_without_end_of_sentence_is_refused(tokenizer):
    other = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="</s>")
    other.backend_tokenizer.post_processor = TemplateProcessing(single="$A")
    with pytest.raises(UserError, match="end every sentence"):
        encode_pairs(datasets.Dataset.from_dict({"source": ["a"], "target": ["b"]}), other, max_length=64, name="train")
