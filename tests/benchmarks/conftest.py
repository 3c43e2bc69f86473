"""Benchmark programs import each other by bare name, as Python does when it runs one of their files."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def program(monkeypatch):
    """Name of a file in benchmarks/ → its module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module
