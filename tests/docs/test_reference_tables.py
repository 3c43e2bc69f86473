"""Tables on the pages that follow from the code are those of this code."""

import importlib.util

import pytest

from .pages import ROOT

spec = importlib.util.spec_from_file_location("reference_tables", ROOT / "docs" / "reference_tables.py")
reference_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference_tables)

PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if "<!-- generated: " in text])
def test_the_tables_of_a_page_are_current(name):
    assert reference_tables.filled(PAGES[name]) == PAGES[name], "run python docs/reference_tables.py"


def test_every_table_is_on_a_page():
    assert all(
        any(f"<!-- generated: {name} -->" in text for text in PAGES.values()) for name in reference_tables.TABLES
    )


def test_a_table_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'no such' is no table"):
        reference_tables.filled("<!-- generated: no such -->\n<!-- end of generated -->")


def test_an_outdated_table_is_replaced_and_the_rest_is_kept():
    old = "before\n<!-- generated: presets -->\nold\n<!-- end of generated -->\nafter\n"
    new = reference_tables.filled(old)
    assert new.startswith("before\n<!-- generated: presets -->\n| preset |")
    assert new.endswith("<!-- end of generated -->\nafter\n")
    assert "old" not in new
