"""Europarl sessions as documents, where the real text is at hand."""

from pathlib import Path

import pytest

from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.corpus import load_split
from reluformer.training.data.documents import pack_split
from reluformer.training.tokenization import train_tokenizer

ROOT = Path(__file__).parents[3]
PARENTS = [folder.parent for folder in (ROOT / "data", ROOT.parent / "shared" / "data") if folder.is_dir()]
PARENT = next((parent for parent in PARENTS if (parent / "data" / "europarl_it_en").is_dir()), None)
pytestmark = pytest.mark.skipif(PARENT is None, reason="no real text: data/europarl_it_en is missing")


@pytest.fixture
def recipe_data(monkeypatch):
    """The data section of a recipe for documents of a length, whose paths start at the folder of data/."""
    monkeypatch.chdir(PARENT)
    return lambda length: load_recipe(f"europarl_it_en_L{length}").data


@pytest.fixture(scope="module")
def tokenizer():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(PARENT)
        pairs, _ = load_split(load_recipe("europarl_it_en_L512").data, "validation")
    return train_tokenizer(
        pairs,
        vocab_size=4_000,
        lowercase=False,
        moses=False,
        source_language="it",
        target_language="en",
        max_length=512,
    )


def test_validation_and_test_are_the_first_and_the_last_two_sessions(recipe_data):
    (validation, read), (test, _) = (load_split(recipe_data(512), split) for split in ("validation", "test"))
    assert (read.read, len(validation), len(test)) == (6_526, 3_772, 2_754)
    assert sorted(set(validation["document"])) == ["ep-01-11-15", "ep-01-11-28"]
    assert sorted(set(test["document"])) == ["ep-01-11-29", "ep-01-12-10"]


def test_real_sessions_are_packed_whole_at_every_length(recipe_data, tokenizer):
    references = set()
    packed_documents = []
    for length in (128, 512, 2048):
        data = recipe_data(length)
        sentences, _ = load_split(data, "test")
        packed = pack_split(data, "test", sentences, tokenizer)
        assert " ".join(packed.pairs["source"]) == " ".join(sentences["source"])
        assert " ".join(packed.pairs["target"]) == " ".join(sentences["target"])
        report = packed.report
        assert report.sentences == 2_754 and report.documents == 2 and not report.skipped
        assert report.kept_too_long or max(report.longest_source, report.longest_target) <= length
        references.add(tuple(packed.references.items()))
        packed_documents.append(report.packed)
    assert len(references) == 1
    assert packed_documents == sorted(packed_documents, reverse=True)
