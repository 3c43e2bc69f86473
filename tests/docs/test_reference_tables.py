"""Tables on the pages that follow from the code are those of this code."""

import importlib.util

import pytest

from .pages import ROOT

spec = importlib.util.spec_from_file_location("reference_tables", ROOT / "docs" / "reference_tables.py")
reference_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference_tables)

PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
# This one tests the difference of many pairs of results for significance.
SLOW = {"evidence.md"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name, text in PAGES.items()
        if "<!-- generated: " in text
    ],
)
def test_the_tables_of_a_page_are_current(name):
    assert reference_tables.filled(PAGES[name]) == PAGES[name], "run python docs/reference_tables.py"
