"""Folders import one way: each only itself and those before it. `make lint` runs this alone."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = ("modeling_reluformer", "configuration", "training", "export", "analysis", "hub_cards", "commands")
PUBLIC = "modeling_reluformer"  # what `from reluformer import name` may load


def imported(source: str) -> list[tuple[int, str]]:
    """Line and module of every absolute import, wherever it stands."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            # `from reluformer import training` names a folder too
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def folder_of(module: str) -> str | None:
    """The folder of a module of this package; None of any other."""
    package, *inner = module.split(".")
    if package != "reluformer":
        return None
    return inner[0] if inner and inner[0] in ORDER else PUBLIC


def against_the_direction(folder: str, source: str) -> list[str]:
    later = ORDER[ORDER.index(folder) + 1 :]
    return [f"line {line} imports {module}" for line, module in imported(source) if folder_of(module) in later]


@pytest.mark.parametrize("folder", ORDER)
def test_a_folder_imports_none_that_comes_after_it(folder):
    paths = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / folder).rglob("*.py")}
    assert paths
    found = {
        name: lines
        for name, path in paths.items()
        if (lines := against_the_direction(folder, path.read_text(encoding="utf-8")))
    }
    assert not found, f"{folder} may import {', '.join(ORDER[: ORDER.index(folder) + 1])} alone: {found}"


@pytest.mark.parametrize(
    "line",
    [
        "from reluformer.analysis.curves import plot_training_curve",
        "import reluformer.hub_cards.card as card",
        "from reluformer import commands",
        "def later():\n    from reluformer.analysis import curves",
    ],
)
def test_an_import_against_the_direction_is_seen(line):
    assert against_the_direction("training", line)
    assert not against_the_direction("commands", line)
    assert not against_the_direction("training", "from reluformer import relu_attention\nimport analysis_tools")
