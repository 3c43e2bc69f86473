"""One small tokenizer for all tests of the analysis."""

import pytest

from .small_models import SOURCES, TARGETS, make_tokenizer


@pytest.fixture(scope="session")
def small_tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def encoded(small_tokenizer):
    """(source ids, labels) of the parallel sentences."""
    labels = small_tokenizer(text_target=TARGETS)["input_ids"]
    return list(zip(small_tokenizer(SOURCES)["input_ids"], labels, strict=True))
