"""Rooms import one way: each only itself and those before it. `make lint` runs this alone."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODEL = "modeling_reluformer"  # also what `from reluformer import name` may load
# A room is a folder, or a part of one; a module belongs to the longest name that it begins with.
ORDER = (
    *(f"{MODEL}.attention_reluformer", f"{MODEL}.compiled", f"{MODEL}.loss_reluformer", f"{MODEL}.fused", MODEL),
    *("configuration", "records", "translating"),
    *("training.data", "training.run", "training.scoring", "training"),
    *("export", "analysis", "hub_cards", "commands"),
)


def imported(module: str, source: str) -> list[tuple[int, str]]:
    """Line and name of every import of a module, wherever it stands."""
    result = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            result += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = ["reluformer", *module.split(".")][: -node.level] if node.level else []
            whole = ".".join([*parents, *([node.module] if node.module else [])])
            # `from reluformer import training` names a room too
            result += [(node.lineno, f"{whole}.{alias.name}") for alias in node.names]
    return result


def room_of(name: str) -> str | None:
    """The room of a name of this package; None of any other."""
    package, _, inner = name.partition(".")
    if package != "reluformer":
        return None
    rooms = [room for room in ORDER if f"{inner}.".startswith(f"{room}.")]
    return max(rooms, key=len, default=MODEL)


def against_the_direction(module: str, source: str) -> list[str]:
    later = ORDER[ORDER.index(room_of(f"reluformer.{module}")) + 1 :]
    return [f"line {line} imports {name}" for line, name in imported(module, source) if room_of(name) in later]


def modules() -> dict[str, Path]:
    """Those of all rooms, `training.run.checkpoints` for one, and their files; an `__init__` by that name."""
    folders = dict.fromkeys(room.partition(".")[0] for room in ORDER)
    paths = [path.relative_to(ROOT).with_suffix("") for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {".".join(path.parts): ROOT / path.with_suffix(".py") for path in paths}


@pytest.mark.parametrize("room", ORDER)
def test_a_room_imports_none_that_comes_after_it(room):
    inside = {name: path for name, path in modules().items() if room_of(f"reluformer.{name}") == room}
    assert inside
    wrong = {
        name: lines
        for name, path in inside.items()
        if (lines := against_the_direction(name, path.read_text(encoding="utf-8")))
    }
    assert not wrong, f"{room} may import {', '.join(ORDER[: ORDER.index(room) + 1])} alone: {wrong}"


@pytest.mark.parametrize(
    "line",
    [
        "from reluformer.analysis.curves import plot_training_curve",
        "import reluformer.hub_cards.card as card",
        "from reluformer import commands",
        "from reluformer.training.scoring import metrics",
        "from ..scoring.metrics import score_translations",
        "from ... import commands",
        "def later():\n    from reluformer.analysis import curves",
    ],
)
def test_an_import_against_the_direction_is_seen(line):
    assert against_the_direction("training.run.checkpoints", line)
    assert not against_the_direction("commands.main", line)
    nothing = "from reluformer import relu_attention\nimport analysis_tools\nfrom ..data.corpus import load_split"
    assert not against_the_direction("training.run.checkpoints", nothing)


def test_attention_in_python_imports_the_library_and_not_the_reverse():
    line = "from ..fused.operator import forward_fake"
    assert against_the_direction(f"{MODEL}.compiled.library", line)
    assert not against_the_direction(f"{MODEL}.fused.operator", "from ..compiled.library import library")
