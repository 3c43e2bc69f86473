"""The generated pages: they are those of the committed results, and say where a goal was missed or nothing was
measured."""

import re

import pytest

from benchmarks import pages, sections
from benchmarks.columns import fact, median_ratio, ratio, shown, speed, time
from benchmarks.measurement_file import PAGES, RESULTS
from benchmarks.pages import goal_table, render, write_pages


@pytest.mark.parametrize("name", pages.SECTIONS)
def test_a_page_is_that_of_the_committed_results(name):
    assert (PAGES / f"{name}.md").read_text(encoding="utf-8") == render(name)


def test_where_nothing_was_measured_the_page_says_so(tmp_path):
    written = list(write_pages(tmp_path, tmp_path))
    assert [path.name for path in written] == ["ATTENTION.md", "MODELS.md", "SPARSE.md"]
    assert (tmp_path / "MODELS.md").read_text(encoding="utf-8").count("Not measured.") == len(pages.SECTIONS["MODELS"])
    assert "Not measured. `make bench-avx2` measures it" in (tmp_path / "MODELS.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", pages.PICTURES)
def test_a_picture_is_drawn_of_the_committed_results_as_wide_as_a_page_shows_it(file, tmp_path):
    (tmp_path / f"{file}-cpu.json").write_bytes((RESULTS / f"{file}-cpu.json").read_bytes())
    drawn, *pages_ = write_pages(tmp_path, tmp_path)
    content = drawn.read_bytes()
    assert content.startswith(b"\x89PNG") and int.from_bytes(content[16:20], "big") == 1200
    assert all(path.suffix == ".md" for path in pages_)


GENERATED = [*pages.SECTIONS, "GPU"]


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_is_written_for_a_reader(name):
    """No value as a program prints it, no table wider than a screen, and goals that one reads at a glance."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert not re.search(r"\b(None|True|False|nan)\b|fused\+|_\w+ \||\('", "".join(tables))
    assert max(table.splitlines()[0].count(" | ") for table in tables) < 9
    goals = text.partition("## Goals")[2].partition("\n## ")[0]
    assert 0 < goals.count("\n|") - 2 <= 10


@pytest.mark.parametrize("name", pages.SECTIONS)
def test_above_each_table_stand_the_machine_and_which_direction_is_better(name):
    measured = (PAGES / f"{name}.md").read_text(encoding="utf-8").partition("## Goals")[2].partition("\n## ")[2]
    before = re.findall(r"(.*)\n\n\|.*\n\|---", measured)
    assert len(before) > 5
    for line in before:
        assert re.fullmatch(r"\*(AMD|Intel).*, [\w ]+ threads\. .*\.\*", line), line
        assert re.search(r"([Hh]igher|[Ll]ower) is better|the first is faster|times as fast", line), line


def rounds(median):
    return {"median": median, "p10": median - 0.1, "p90": median + 0.1}


def times(median):
    return {"median_ms": median, "p10_ms": median, "p90_ms": median, "rounds": 3, "repetitions": 1}


CELLS = [
    {"dtype": dtype, "n": n, "times": {"a": times(2.0), "b": times(3.0)}, "speedups": {"a": {"b": rounds(over)}}}
    for dtype, n, over in (("float32", 16, 1.5), ("float32", 1024, 0.8), ("bfloat16", 16, 0.5))
]


def goal(title, where, rivals, at_least):
    return {"file": "file", "title": title, "where": where, "ours": "a", "rivals": rivals, "at_least": at_least}


def test_goals_of_a_title_are_one_row_that_counts_their_cells_and_names_the_lowest():
    results = {"file": {"cells": CELLS}, "absent": None}
    met = goal("short", {"dtype": ["float32"], "n": [16]}, ["b"], 1.5)
    missed = [goal("all", {"dtype": ["float32"]}, ["b"], 0.9), goal("all", {"dtype": ["bfloat16"]}, ["b"], 0.4)]
    unmeasured = [{**goal("absent", {}, ["b"], 1.0), "file": "absent"}, goal("none", {}, ["b", "c"], 1.0)]
    assert goal_table([met, *missed, *unmeasured], results)[2:] == [
        "| short | 1.5× | 1 of 1 | 1.50× | float32, 16 |",
        "| all | 0.4 to 0.9× | **2 of 3** | 0.50× | bfloat16, 16 |",
    ]


def test_a_goal_over_several_rivals_is_over_the_fastest():
    cell = {"times": {}, "speedups": {"a": {"b": rounds(1.2), "c": rounds(0.9)}}}
    row = goal_table([goal("both", {}, ["b", "c"], 1.0)], {"file": {"cells": [cell]}})[2]
    assert "**0 of 1** | 0.90×" in row


def test_each_program_is_taken_at_its_better_number_of_threads():
    names = {"shape": "tiny", "inputs": "sentences", "beams": 5, "sentences": 1}
    milliseconds = {1: {"float32": (8.0, 6.0), "int8": (3.0, 5.0)}, 2: {"float32": (4.0, 9.0), "int8": (4.0, 9.0)}}
    cells = []
    for threads, by_type in milliseconds.items():
        of_ours = {f"ReLUFormer {kind}": times(ours) for kind, (ours, _) in by_type.items()}
        of_theirs = {f"CTranslate2 {kind}": times(theirs) for kind, (_, theirs) in by_type.items()}
        cells.append({**names, "threads": threads, "times": of_ours | of_theirs, "speedups": {}})
    result = {"cells": cells, "machine": {"cpu": "AMD"}, "settings": {"threads": 2}}
    assert "| tiny | sentences | 5 | 1 | 1.50 | 1.67 |" in list(sections.at_better_threads(result))
    assert list(sections.at_better_threads({**result, "cells": cells[:1]})) == [], "of one number nothing is better"


def test_a_table_has_a_dash_for_who_was_not_timed_and_no_column_without_a_value():
    other = {"dtype": "bfloat16", "n": 2048, "times": {"a": times(4.0)}, "speedups": {"a": {}}}
    columns = [
        fact("dtype", "type"),
        fact("n"),
        time("a"),
        time("b"),
        time("c"),
        ratio("a", "b"),
        median_ratio("a", "b"),
    ]
    assert shown([CELLS[0], other], columns) == [
        "| type | n | a, ms | b, ms | a over b | b |",
        "|---|--:|--:|--:|--:|--:|",
        "| float32 | 16 | 2 | 3 | 1.50 (1.40–1.60) | 1.50 |",
        "| bfloat16 | 2,048 | 4 | – | – | – |",
    ]
    speeds = {**CELLS[0], "speeds": {"a": 1234.5, "b": 0.12345}}
    assert shown([speeds], [fact("n"), speed("b"), speed("a"), speed("c")])[2] == "| 16 | 0.1235 | 1,234 |"
