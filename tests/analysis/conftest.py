"""One small tokenizer for all tests of the analysis."""

import pytest

from reluformer.training.translation import Translator

from .small_models import SOURCES, TARGETS, make_tokenizer


@pytest.fixture(scope="session")
def small_tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def encoded(small_tokenizer):
    """(source ids, labels) of the parallel sentences."""
    labels = small_tokenizer(text_target=TARGETS)["input_ids"]
    return list(zip(small_tokenizer(SOURCES)["input_ids"], labels, strict=True))


@pytest.fixture
def translations(monkeypatch):
    """What a Translator is asked to translate; its model is random, so it answers with the parallel sentences."""
    asked = []

    def translate(self, texts, progress=False):
        asked.extend(texts)
        return [dict(zip(SOURCES, TARGETS, strict=True))[text] for text in texts]

    monkeypatch.setattr(Translator, "__call__", translate)
    return asked
