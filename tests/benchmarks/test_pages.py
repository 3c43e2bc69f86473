"""The generated pages: they are those of the committed results, and say where a goal was missed or nothing was measured."""

import pytest

from benchmarks import pages
from benchmarks.measurement_file import PAGES, RESULTS
from benchmarks.pages import cell_table, goal_table, render, write_pages


@pytest.mark.parametrize("name", pages.SECTIONS)
def test_a_page_is_that_of_the_committed_results(name):
    assert (PAGES / f"{name}.md").read_text(encoding="utf-8") == render(name)


def test_where_nothing_was_measured_the_page_says_so(tmp_path):
    written = list(write_pages(tmp_path, tmp_path))
    assert [path.name for path in written] == ["ATTENTION.md", "MODELS.md", "SPARSE.md"]
    assert (tmp_path / "MODELS.md").read_text(encoding="utf-8").count("Not measured.") == len(pages.SECTIONS["MODELS"])
    assert "Not measured. `make bench-avx2` measures it" in (tmp_path / "MODELS.md").read_text(encoding="utf-8")


def test_the_picture_is_drawn_of_the_committed_results(tmp_path):
    (tmp_path / "attention-cpu.json").write_bytes((RESULTS / "attention-cpu.json").read_bytes())
    drawn, *pages_ = write_pages(tmp_path, tmp_path)
    assert drawn.read_bytes().startswith(b"\x89PNG") and all(path.suffix == ".md" for path in pages_)


def ratio(median):
    return {"median": median, "p10": median - 0.1, "p90": median + 0.1}


def times(median):
    return {"median_ms": median, "p10_ms": median, "p90_ms": median, "rounds": 3, "repetitions": 1}


CELLS = [
    {"dtype": dtype, "n": n, "times": {"a": times(2.0), "b": times(3.0)}, "speedups": {"a": {"b": ratio(over)}}}
    for dtype, n, over in (("float32", 16, 1.5), ("float32", 1024, 0.8), ("bfloat16", 16, 0.5))
]


def goal(where, rivals, at_least):
    return {"file": "file", "where": where, "ours": "a", "rivals": rivals, "at_least": at_least}


def test_a_goal_counts_its_cells_and_names_the_lowest():
    results = {"file": {"cells": CELLS}, "absent": None}
    met = goal({"dtype": ["float32"], "n": [16]}, ["b"], 1.5)
    missed = goal({"dtype": ["float32"]}, ["b"], 0.9)
    unmeasured = [{**goal({}, ["b"], 1.0), "file": "absent"}, goal({}, ["b", "c"], 1.0)]
    assert goal_table([met, missed, *unmeasured], results)[2:] == [
        "| a: float32, 16 | b | ≥ 1.5× | 1 of 1 | 1.50× (float32, n 16) |",
        "| a: float32 | b | ≥ 0.9× | **1 of 2** | 0.80× (float32, n 1,024) |",
    ]


def test_a_goal_over_several_rivals_is_over_the_fastest():
    cell = {"times": {}, "speedups": {"a": {"b": ratio(1.2), "c": ratio(0.9)}}}
    row = goal_table([goal({}, ["b", "c"], 1.0)], {"file": {"cells": [cell]}})[2]
    assert "**0 of 1** | 0.90×" in row


def test_each_program_is_taken_at_its_better_number_of_threads():
    names = {"shape": "tiny", "inputs": "sentences", "beams": 5, "sentences": 1}
    milliseconds = {1: {"float32": (8.0, 6.0), "int8": (3.0, 5.0)}, 2: {"float32": (4.0, 9.0), "int8": (4.0, 9.0)}}
    cells = []
    for threads, by_type in milliseconds.items():
        of_ours = {f"ReLUFormer {kind}": times(ours) for kind, (ours, _) in by_type.items()}
        of_theirs = {f"CTranslate2 {kind}": times(theirs) for kind, (_, theirs) in by_type.items()}
        cells.append({**names, "threads": threads, "times": of_ours | of_theirs, "speedups": {}})
    assert "| tiny | sentences | 5 | 1 | 1.50 | 1.67 |" in list(pages._at_better_threads({"cells": cells}))
    assert list(pages._at_better_threads({"cells": cells[:1]})) == [], "of one number nothing is better"


def test_a_table_has_times_or_speeds_and_a_dash_for_who_was_not_timed():
    other = {"dtype": "bfloat16", "n": 2048, "times": {"a": times(4.0)}, "speedups": {"a": {}}}
    assert cell_table([CELLS[0], other], ["dtype", "n"]) == [
        "| dtype | n | a | b | a over b |",
        "|---|--:|--:|--:|--:|",
        "| float32 | 16 | 2 | 3 | 1.50 (1.40–1.60) |",
        "| bfloat16 | 2,048 | 4 | – | – |",
    ]
    speeds = {**CELLS[0], "speeds": {"a": 1234.5, "b": 0.12345}}
    assert cell_table([speeds], ["n"], shown=["b", "a"], compared={})[2] == "| 16 | 0.1235 | 1,234 |"
