"""Multi30k, where the real text is at hand."""

from pathlib import Path

import numpy as np
import pytest

from reluformer.training.data.corpus import read_parallel_files
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.data.token_batches import TokenBatchSampler
from reluformer.training.tokenization import train_tokenizer

ROOT = Path(__file__).parents[3]
FOLDERS = [folder / "multi30k" for folder in (ROOT / "data", ROOT.parent / "shared" / "data")]
FOLDER = next((folder for folder in FOLDERS if folder.is_dir()), None)
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no real text: data/multi30k is missing")


@pytest.fixture(scope="module")
def pairs():
    pairs, report = read_parallel_files(FOLDER / "train.en.gz", FOLDER / "train.de.gz", name="multi30k")
    assert (report.read, report.kept, report.skipped) == (29_000, 29_000, {})
    return pairs


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return train_tokenizer(
        pairs, vocab_size=8_000, lowercase=True, moses=False, source_language="en", target_language="de", max_length=256
    )


def test_all_pairs_are_read(pairs):
    assert len(pairs) == 29_000 and pairs.column_names == ["source", "target"]


def test_round_trip_of_real_text(pairs, tokenizer):
    normalize = tokenizer.backend_tokenizer.normalizer.normalize_str
    texts = [*pairs[:1_000]["source"], *pairs[:1_000]["target"]]
    decoded = tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True)
    assert decoded == [normalize(text) for text in texts]


@pytest.mark.parametrize("budget", [4_096, 8_192])
def test_batches_of_real_text(pairs, tokenizer, budget):
    encoded, report = encode_pairs(pairs.select(range(10_000)), tokenizer, max_length=256, name="multi30k")
    assert report.kept == 10_000
    lengths = [np.array([len(ids) for ids in encoded[column]]) for column in ("input_ids", "labels")]
    plan = list(TokenBatchSampler(*lengths, tokens_per_batch=budget, seed=1))
    padded = sum(len(batch) * sum(side[batch].max() for side in lengths) for batch in plan)
    assert 1 - sum(side.sum() for side in lengths) / padded < 0.10
