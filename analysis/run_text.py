"""The test text of a run, as files that `reluformer analyze` reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.corpus import has_split, load_split
from reluformer.training.run.run_folder import RECIPE_FILE


def run_text(run: str, folder: Path) -> dict[str, Any]:
    """The options of `AnalysisOptions` that name the test split of a run; its text is written into `folder`.

    Raises:
        UserError: no run, or no test split.
    """
    if not (Path(run) / RECIPE_FILE).is_file():
        raise UserError(f"--run: {run!r} holds no {RECIPE_FILE}; give the folder of a run, or --model and --text")
    recipe = load_recipe(Path(run) / RECIPE_FILE)
    data = recipe.data
    if not has_split(data, "test"):
        raise UserError(f"--run: the recipe of {run} has no test split; give --model and --text")
    pairs, _ = load_split(data, "test")
    columns = {"text": "source", "target_text": "target"} | ({"documents": "document"} if data.packing else {})
    lines = {option: (" ".join(text.split("\n")) for text in pairs[column]) for option, column in columns.items()}
    found: dict[str, Any] = {
        option: _written(folder / f"test.{columns[option]}.txt", texts) for option, texts in lines.items()
    }
    return found | ({"max_length": data.max_length} if data.packing else {})


def _written(path: Path, texts: Iterable[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{text}\n" for text in texts)
    return str(path)
