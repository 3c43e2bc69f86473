"""The test text of a run, as files that `reluformer analyze` reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reluformer.configuration.errors import UserError
from reluformer.configuration.image_recipe import ImageRecipe
from reluformer.configuration.language_recipe import LanguageRecipe
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.splits import has_split, load_split
from reluformer.training.data.text_sources import has_texts, split_documents
from reluformer.training.run.run_folder import RECIPE_FILE


def run_text(run: str, folder: Path) -> dict[str, Any]:
    """The options of `AnalysisOptions` that name the test split of a run; its text is written into `folder`.

    Raises:
        UserError: no run, no test split, or pictures that are no IDX files.
    """
    if not (Path(run) / RECIPE_FILE).is_file():
        raise UserError(f"--run: {run!r} holds no {RECIPE_FILE}; give the folder of a run, or --model and --text")
    recipe = load_recipe(Path(run) / RECIPE_FILE)
    data = recipe.data
    if isinstance(recipe, ImageRecipe):
        if data.test is None:
            raise UserError(f"--run: {run}: its pictures are no IDX files; give --model and --images")
        return {"images": data.test.images, "image_labels": data.test.labels}
    is_language = isinstance(recipe, LanguageRecipe)
    if not (has_texts if is_language else has_split)(data, "test"):
        raise UserError(f"--run: the recipe of {run} has no test split; give --model and --text")
    if is_language:
        documents = (document.text for document in split_documents(data, "test").read() if document.text)
        return {"text": _written(folder / "test.txt", documents)}
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
