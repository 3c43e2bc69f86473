"""The command that plants faults: it kills what a test sees, reports what none sees, and accepts only what is explained."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .mutants import mutants_of
from .run import ROOT, plan_tests, stale
from .table import TABLE, committed, table

CODE = '''\
def double(x: int = 0) -> int:
    """Twice 1."""
    if x > 100:
        raise ValueError(f"{x}: at most {99 + 1} expected")
    return x * 2
'''
PLAN = """\
files: [{folder: modeling_toy, files: [arithmetic], tests: [test_arithmetic.py]}]
tests_left_out: []
left_out: {}
"""
TEST = "from toy.arithmetic import double\n\ndef test_double():\n    assert double(3) == 6\n    assert double() == 0\n"


@pytest.fixture
def repository(tmp_path) -> Path:
    """Of a package `toy` in a folder of another name; the tests never come near its bound."""
    for name, text in {
        "setup.py": 'PACKAGE_FOLDERS = {"toy": "modeling_toy"}\n',
        "modeling_toy/__init__.py": "",
        "modeling_toy/arithmetic.py": CODE,
        "tests/test_arithmetic.py": TEST,
        "plan.yaml": PLAN,
        "explained.yaml": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def plant(repository: Path) -> tuple[int, dict]:
    options = [f"--{name}={repository / name}.yaml" for name in ("plan", "explained")]
    output = repository / "result.json"
    command = [
        sys.executable,
        "-m",
        "tests.mutation.run",
        f"--root={repository}",
        *options,
        f"--output={output}",
        "--count=0",
    ]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert output.is_file(), ended.stderr
    return ended.returncode, json.loads(output.read_text())


def test_a_fault_that_tests_see_is_killed_and_others_survive_until_explained(repository):
    status, result = plant(repository)
    assert status == 1
    survived = {survivor["after"] for survivor in result["survivors"]}
    assert survived == {"if x >= 100:", "if x > 101:", "if False:", "pass"}
    counts = result["files"]["modeling_toy/arithmetic.py"]
    assert counts == {"killed": 6, "timeout": 0, "survived": 4, "explained": 0}
    assert (result["mutants"], result["drawn_from"], result["seed"]) == (10, 10, 0)
    assert (repository / "modeling_toy/arithmetic.py").read_text() == CODE

    names = ("file", "scope", "before", "after")
    explained = [{**{name: survivor[name] for name in names}, "reason": "far away"} for survivor in result["survivors"]]
    (repository / "explained.yaml").write_text(yaml.safe_dump(explained))
    (repository / "modeling_toy/arithmetic.py").write_text(f"import math\n\n{CODE}")  # other lines, the same faults
    status, result = plant(repository)
    assert status == 0
    assert [survivor["line"] for survivor in result["survivors"]] == [5, 5, 5, 6]
    assert "if x >= 100:`. far away" in table(result)

    (repository / "modeling_toy/arithmetic.py").write_text(CODE.replace("100", "200"))
    assert len(stale(repository, ["modeling_toy/arithmetic.py"], explained)) == 3


@pytest.mark.parametrize(
    ("file", "after"),
    [
        ("multihead_reluformer.py", "dropout=(0.0),"),
        ("attention_reference.py", "weights = (weights)"),
        ("regularization_reluformer.py", "return torch.log(safe_sum).abs() + torch.relu((entropy))"),
    ],
)
def test_faults_of_formulas_are_among_the_mutants(file, after):
    mutants = mutants_of(file, (ROOT / "modeling_reluformer" / file).read_text())
    assert after in {mutant.after for mutant in mutants}


def test_nothing_is_planted_in_words_annotations_and_strings():
    texts = [mutant.after for mutant in mutants_of("a.py", CODE)]
    assert len(texts) == 10
    assert not any("at most" in text for text in texts)


def test_the_plan_names_every_file_of_the_model_and_tests_that_exist():
    plan = yaml.safe_load((Path(__file__).parent / "plan.yaml").read_text())
    tests = plan_tests(plan)
    assert {*tests, *plan["left_out"]} >= {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "modeling_reluformer").rglob("*.py")
    }
    named = (name for group in plan["files"] for name in (*group["tests"], *group.get("then", ())))
    folders = (ROOT / "tests" / name.split("::")[0] for name in named)
    assert all(path.exists() for path in (*folders, *(ROOT / name for name in (*tests, *plan["left_out"]))))


def test_the_page_is_of_the_committed_result():
    assert TABLE.read_text(encoding="utf-8") == table(committed()), "run `python -m tests.mutation.table`"
