"""The programs of benchmarks/, which are not installed."""

import importlib

import pytest


@pytest.fixture
def program():
    """Name of a module in benchmarks/, for example "speed.attention" → the module."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")
