"""The command that plants faults; its faults stand in their files, and the committed page is of the committed
result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .run import FAULTS, PAGE, RESULT, ROOT, page

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
    command = [sys.executable, str(Path(__file__).with_name("run.py")), f"--root={tmp_path}"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    rows = json.loads((tmp_path / RESULT).read_text())["faults"]
    assert {
        row["before"]: row["found"].split(":")[0] if row["found"][:3] == "not" else row["found"] for row in rows
    } == FOUND
    assert ended.returncode == 1 and "| together | 4 | 1 |" in (tmp_path / PAGE).read_text()
    assert (tmp_path / "toy/arithmetic.py").read_text() == CODE
    (tmp_path / FAULTS).write_text(
        yaml.safe_dump([{**group, "faults": [["x * 2", "False"], ["return 200", "return 0"]]}])
    )
    ended = subprocess.run(
        [*command, "--new"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert "return 200" in ended.stdout and "x * 2" not in ended.stdout
    assert "| together | 2 | 1 |" in (tmp_path / PAGE).read_text()


def test_every_fault_stands_once_in_its_file_and_the_page_is_of_the_result():
    groups = yaml.safe_load((ROOT / FAULTS).read_text(encoding="utf-8"))
    planted = [(group["file"], *fault) for group in groups for fault in group["faults"]]
    moved = [fault for fault in planted if (ROOT / fault[0]).read_text(encoding="utf-8").count(fault[1]) != 1]
    assert moved == [], f"these texts do not stand once in their files any more; mend {FAULTS}"
    result = json.loads((ROOT / RESULT).read_text(encoding="utf-8"))
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(result), "run `make mutants`"
