"""The command that plants faults; its faults stand in their files, and the committed page is of the committed
result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .operators import changes
from .report import JUDGEMENTS, PAGE, RESULT, SAMPLES, judged, outcome, page
from .run import FAULTS, ROOT
from .sample import changed_source, covering, described, draws, function_at, rooms

CODE = "def double(x):\n    if x > 100:\n        return 200\n    return x * 2\n"
TEST = "from toy.arithmetic import double\n\ndef test_double():\n    assert double(3) == 6\n"
FOUND = {"x * 2": "test_toy.py::test_double", "x > 100": "passed", "def double(x):": "not run", "x ** 2": "not run"}


@pytest.mark.slow
def test_a_fault_is_killed_by_a_test_that_fails_and_nothing_else_counts(tmp_path):
    group = {"file": "toy/arithmetic.py", "tests": "test_toy.py", "faults": [[before, "False"] for before in FOUND]}
    for name, text in {
        "toy/__init__.py": "",
        "toy/arithmetic.py": CODE,
        "tests/test_toy.py": TEST,
        FAULTS: yaml.safe_dump([group]),
        RESULT: "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    command = [sys.executable, "-m", "tests.mutation.run", f"--root={tmp_path}"]
    ended = in_repository(command)
    rows = json.loads((tmp_path / RESULT).read_text())["faults"]
    assert {
        row["before"]: row["found"].split(":")[0] if row["found"][:3] == "not" else row["found"] for row in rows
    } == FOUND
    assert ended.returncode == 1 and "| together | 4 | 1 |" in (tmp_path / PAGE).read_text()
    assert (tmp_path / "toy/arithmetic.py").read_text() == CODE
    (tmp_path / FAULTS).write_text(
        yaml.safe_dump([{**group, "faults": [["x * 2", "False"], ["return 200", "return 0"]]}])
    )
    ended = in_repository([*command, "--new"])
    assert "return 200" in ended.stdout and "x * 2" not in ended.stdout
    assert "| together | 2 | 1 |" in (tmp_path / PAGE).read_text()


def test_every_fault_stands_once_in_its_file_and_the_page_is_of_the_result():
    groups = yaml.safe_load((ROOT / FAULTS).read_text(encoding="utf-8"))
    planted = [(group["file"], *fault) for group in groups for fault in group["faults"]]
    moved = [fault for fault in planted if (ROOT / fault[0]).read_text(encoding="utf-8").count(fault[1]) != 1]
    assert moved == [], f"these texts do not stand once in their files any more; mend {FAULTS}"
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(ROOT), "run `make mutants` or `make mutants-sample`"


# Changes drawn by chance

PYTHON = """
def first(rows: list[int], *, limit=3):
    # rows < limit
    if rows and len(rows) >= limit - 1:
        rows.sort()
    return pick(rows[1:limit], -1, strict=True) + f"{limit + 1}"
"""
IN_PYTHON = {
    ("constant", "def first(rows: list[int], *, limit=(4)):"),
    ("branch", "if (not (rows and len(rows) >= limit - 1)):"),
    ("boolean", "if (rows or len(rows) >= limit - 1):"),
    ("boolean", "if (len(rows) >= limit - 1):"),
    ("comparison", "if rows and (len(rows) > limit - 1):"),
    ("arithmetic", "if rows and len(rows) >= (limit + 1):"),
    ("statement dropped", "pass"),
    ("slice", 'return pick((rows[1:]), -1, strict=True) + f"{limit + 1}"'),
    ("argument left out", 'return (pick(rows[1:limit], -1)) + f"{limit + 1}"'),
    ("argument left out", 'return (pick(rows[1:limit], strict=True)) + f"{limit + 1}"'),
    ("argument swapped", 'return (pick(-1, rows[1:limit], strict=True)) + f"{limit + 1}"'),
    ("arithmetic", "return (pick(rows[1:limit], -1, strict=True) - f'{limit + 1}')"),
}
CPP = """
#define WIDTH 16 // a < b
void sum(std::vector<float>& row, int count) {
  // row[0] = 1;
  if (count < 4 && !row.empty()) {
    row[2] += scaled(row.data(), "a, b == 2");
  }
}
"""
IN_CPP = {
    ("comparison", "if (count <= 4 && !row.empty()) {"),
    ("boolean", "if (count < 4 || !row.empty()) {"),
    ("boolean", "if (count < 4 && row.empty()) {"),
    ("branch", "if (!(count < 4 && !row.empty())) {"),
    ("constant", "if (count < 5 && !row.empty()) {"),
    ("arithmetic", 'row[2] -= scaled(row.data(), "a, b == 2");'),
    ("constant", 'row[1] += scaled(row.data(), "a, b == 2");'),
    ("argument swapped", 'row[2] += scaled("a, b == 2", row.data());'),
    ("argument left out", "row[2] += scaled(row.data());"),
    ("statement dropped", ";"),
}


@pytest.mark.parametrize(("name", "source", "some"), [("a.py", PYTHON, IN_PYTHON), ("a.cpp", CPP, IN_CPP)])
def test_every_operator_changes_the_code_and_nothing_else(name, source, some):
    found = changes(name, source)
    rows = [described(name, source, change) for change in found]
    assert some <= {(row["operator"], row["after"]) for row in rows}
    untouched = ("#", "//", "{limit +", "list[int]")
    lines = source.splitlines()
    for change, row in zip(found, rows, strict=True):
        changed = changed_source(source, change).splitlines()
        assert len(changed) == len(lines) and sum(a != b for a, b in zip(changed, lines, strict=True)) == 1
        assert all(row["before"].count(text) == row["after"].count(text) for text in untouched)
        above = [line.strip() for line in lines[: change.line - 1] if line.strip()]
        assert row["above"] == (above[-1] if above else "")
        if name == "a.py":
            compile("\n".join(changed), name, "exec")


@pytest.mark.parametrize(
    ("name", "source"),
    [("a.py", "x = min(a, b) + max(c, d, key=e)\n"), ("a.cpp", "  x = std::min(a, b) + std::max<int>(c, d);\n")],
)
def test_arguments_whose_order_does_not_matter_are_not_swapped(name, source):
    operators = [change.operator for change in changes(name, source)]
    assert "argument swapped" not in operators and "argument left out" in operators


def test_what_is_drawn_follows_from_the_seed_and_covers_every_installed_folder():
    files = rooms(ROOT)
    room = "training/scoring (Python)"
    drawn = [list(draws(ROOT, files[room], room, seed)) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == len({(name, change.line) for name, change in drawn[0]}), "a line is drawn once"
    assert {name for name, _ in drawn[0]} <= set(files[room])
    installed = {path.relative_to(ROOT / "reluformer").as_posix() for path in (ROOT / "reluformer").glob("*/**/*.py")}
    packages = {name for name in installed if not name.startswith("models/")}
    assert packages <= {name for names in files.values() for name in names}
    languages = {Path(name).suffix for names in files.values() for name in names}
    assert languages == {".py", ".cpp", ".h", ".js"}


def test_tests_are_chosen_by_the_function_they_enter():
    source = "LIMIT = 3\n\n\nclass A:\n    def f(self):\n        def g():\n            return 1\n\n        return g\n"
    assert [function_at(source, line) for line in (1, 6, 7, 9)] == [None, "A.f", "A.f.<locals>.g", "A.f"]
    record = {
        "tests": {
            "slower": {"seconds": 2, "functions": ["a.py:A.f", "b.py:h"]},
            "quicker": {"seconds": 1, "functions": ["a.py:A.f"]},
            "other": {"seconds": 0, "functions": ["b.py:h"]},
        },
        "shared": ["c.py:shared"],
    }
    assert covering(record, "folder/a.py", "A.f") == ["quicker", "slower"]
    assert covering(record, "folder/a.py", "A") == []
    assert covering(record, "folder/b.py", None) == ["other", "quicker", "slower"]
    assert covering(record, "folder/c.py", "shared") == ["other", "quicker", "slower"]


def test_a_judgement_stays_with_its_line_wherever_it_moves(tmp_path):
    row = {"file": "old/a.py", "above": "x = 1", "before": "y = x < 2", "after": "y = (x <= 2)", "found": "passed"}
    (tmp_path / JUDGEMENTS).parent.mkdir(parents=True)
    (tmp_path / JUDGEMENTS).write_text(yaml.safe_dump([{**row, "reason": "x is 1"}]))
    reasons = judged(tmp_path)
    assert outcome({**row, "file": "new/a.py", "line": 9}, reasons) == "equivalent"
    assert outcome({**row, "above": "x = 2"}, reasons) == "survived"
    assert outcome({**row, "found": "test_a.py::test_a"}, reasons) == "killed"


def test_every_judged_line_still_stands_in_the_code():
    written = {}
    for name in (name for names in rooms(ROOT).values() for name in names):
        written.setdefault(Path(name).name, []).append(" ".join((ROOT / name).read_text(encoding="utf-8").split()))
    gone = []
    for judgement in yaml.safe_load((ROOT / JUDGEMENTS).read_text(encoding="utf-8")):
        lines = " ".join(judgement.get("now", f"{judgement['above']} {judgement['before']}").split())
        if not any(lines in text for text in written.get(judgement["file"], [])):
            gone.append(lines)
    assert gone == [], f"these lines have changed: judge them anew in {JUDGEMENTS}"


@pytest.mark.slow
def test_a_sample_of_a_small_package(tmp_path):
    for name, text in {
        "reluformer/__init__.py": "",
        "toy/__init__.py": "",
        "toy/arithmetic.py": CODE,
        "tests/__init__.py": "",
        "tests/toy/test_arithmetic.py": TEST.replace("from toy", "from reluformer.toy"),
        "tests/toy/test_other.py": "def test_fails():\n    assert False\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "reluformer/toy").symlink_to("../toy")
    (tmp_path / RESULT).parent.mkdir(parents=True)
    (tmp_path / RESULT).write_text((ROOT / RESULT).read_text())
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    command = [sys.executable, "-m", "tests.mutation.sample", f"--root={tmp_path}", "--seed=1", "--count=9"]
    ended = in_repository(command)
    rows = json.loads((tmp_path / SAMPLES.format(1)).read_text())["changes"]
    found = {row["before"]: row["found"] for row in rows}
    assert found == {
        "if x > 100:": "passed",
        "return 200": "passed",
        "return x * 2": "toy/test_arithmetic.py::test_double",
    }, ended.stdout + ended.stderr
    assert ended.returncode == 1 and "| together | 3 | 1 | 0 | 2 | 33% |" in (tmp_path / PAGE).read_text()
    assert (tmp_path / "toy/arithmetic.py").read_text() == CODE
    survivors = [{**row, "reason": "no matter"} for row in rows if row["found"] == "passed"]
    (tmp_path / JUDGEMENTS).parent.mkdir()
    (tmp_path / JUDGEMENTS).write_text(yaml.safe_dump(survivors))
    ended = in_repository([*command, "--again"])
    assert ended.returncode == 0 and ended.stdout == "", "what is killed or judged is not tried again"
    assert "| together | 3 | 1 | 2 | 0 | 100% |" in (tmp_path / PAGE).read_text()


def in_repository(command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
