"""A function is at most 60 lines long, so that it is seen whole; a kernel, and the `forward` of a model, are one
whole."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.size import LONGEST, ROOT, function_sizes

WHOLE = ("forward", "_kernel")  # what their names end in


def too_long(path: Path) -> list[str]:
    sizes = function_sizes(path)
    return [f"{name}: {size} lines" for name, size in sizes if size > LONGEST and not name.endswith(WHOLE)]


def test_every_function_is_seen_whole():
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("git does not tell which files are of this repository")
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    longer = {str(path.relative_to(ROOT)): names for path in paths if path.is_file() and (names := too_long(path))}
    assert not longer, "take a step out of these and name it"


def test_a_function_that_is_longer_is_named(tmp_path):
    path = tmp_path / "long.py"
    for name, wrong in (("read", True), ("forward", False), ("gradient_kernel", False)):
        path.write_text(f"def {name}():\n" + "    pass\n" * LONGEST)
        assert bool(too_long(path)) is wrong
    path.write_text("def read():\n" + "    pass\n" * (LONGEST - 1))
    assert not too_long(path)
