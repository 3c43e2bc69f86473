"""Multi30k, and Europarl sessions as documents, where the real text is at hand."""

from pathlib import Path

import pytest

from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.corpus import load_split, read_parallel_files
from reluformer.training.data.documents import pack_split
from reluformer.training.data.encoding import encode_pairs, token_lengths
from reluformer.training.data.token_batches import TokenBatchSampler
from reluformer.training.tokenization import train_tokenizer

ROOT = Path(__file__).parents[3]
PARENTS = [folder.parent for folder in (ROOT / "data", ROOT.parent / "shared" / "data") if folder.is_dir()]
PARENT = next((parent for parent in PARENTS if (parent / "data" / "europarl_it_en").is_dir()), None)
pytestmark = pytest.mark.skipif(PARENT is None, reason="no real text: data/europarl_it_en is missing")
OPTIONS = {"moses": False, "source_language": "it", "target_language": "en", "max_length": 512}


def test_multi30k_is_read_whole_and_its_batches_have_little_padding():
    folder = PARENT / "data" / "multi30k"
    pairs, report = read_parallel_files(folder / "train.en.gz", folder / "train.de.gz", name="multi30k")
    assert (report.read, report.kept, report.skipped) == (29_000, 29_000, {})
    tokenizer = train_tokenizer(pairs, vocab_size=8_000, lowercase=True, **OPTIONS)
    texts = pairs[:1_000]["source"]
    decoded = tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True)
    assert decoded == [tokenizer.backend_tokenizer.normalizer.normalize_str(text) for text in texts]
    encoded, _ = encode_pairs(pairs.select(range(10_000)), tokenizer, max_length=256, name="multi30k")
    lengths = [token_lengths(encoded, column) for column in ("input_ids", "labels")]
    for budget in (4_096, 8_192):
        plan = list(TokenBatchSampler(*lengths, tokens_per_batch=budget, seed=1))
        padded = sum(len(batch) * sum(side[batch].max() for side in lengths) for batch in plan)
        assert 1 - sum(side.sum() for side in lengths) / padded < 0.10


def test_sessions_of_europarl_are_packed_whole_at_every_length(monkeypatch):
    monkeypatch.chdir(PARENT)
    validation, read = load_split(load_recipe("europarl_it_en_L512").data, "validation")
    assert (read.read, len(validation)) == (6_526, 3_772)
    assert sorted(set(validation["document"])) == ["ep-01-11-15", "ep-01-11-28"]
    tokenizer = train_tokenizer(validation, vocab_size=4_000, lowercase=False, **OPTIONS)
    references, packed_documents = set(), []
    for length in (128, 512, 2048):
        data = load_recipe(f"europarl_it_en_L{length}").data
        sentences, _ = load_split(data, "test")
        packed = pack_split(data, "test", sentences, tokenizer)
        assert " ".join(packed.pairs["source"]) == " ".join(sentences["source"])
        assert " ".join(packed.pairs["target"]) == " ".join(sentences["target"])
        report = packed.report
        assert report.kept == 2_754 and report.documents == 2 and not report.skipped
        assert (
            report.kept_too_long
            or max(max(map(len, packed.encoded[side])) for side in ("input_ids", "labels")) <= length
        )
        references.add(tuple(packed.references.items()))
        packed_documents.append(report.packed)
    assert len(references) == 1
    assert packed_documents == sorted(packed_documents, reverse=True)
