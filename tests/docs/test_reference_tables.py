"""Tables on the pages that follow from the code are those of this code."""

import importlib.util

import pytest

from .pages import ROOT

spec = importlib.util.spec_from_file_location("reference_tables", ROOT / "docs" / "reference_tables.py")
reference_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference_tables)

PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
# These test the difference of many pairs of results for significance.
SLOW = {"README.md", "evidence.md", "when_to_use.md"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name, path in PAGES.items()
        if "<!-- generated: " in path.read_text(encoding="utf-8")
    ],
)
def test_the_tables_of_a_page_are_current(name):
    text = PAGES[name].read_text(encoding="utf-8")
    assert reference_tables.filled(text, PAGES[name].parent) == text, "run python docs/reference_tables.py"


def test_links_of_a_table_lead_from_the_folder_of_its_page(monkeypatch):
    monkeypatch.setitem(reference_tables.TABLES, "links", lambda: "[a](evidence.md#b) [c](https://d.e/f.md)\n")
    block = "<!-- generated: links -->\n<!-- end of generated -->"
    assert "[a](docs/evidence.md#b) [c](https://d.e/f.md)" in reference_tables.filled(block, ROOT)
    assert "[a](evidence.md#b) [c](https://d.e/f.md)" in reference_tables.filled(block)
