"""Reading the files of a model's folder, with errors for a user."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reluformer.configuration.errors import UserError, one_line
from reluformer.hub_cards.trainer_log import is_number
from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE


@dataclass(frozen=True)
class ModelFiles:
    """The JSON and YAML files of a folder."""

    folder: Path

    @property
    def recipe(self) -> dict[str, Any]:
        """recipe.yaml, {} without one."""
        path = self.folder / RECIPE_FILE
        if not path.is_file():
            return {}
        try:
            recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise UserError(f"{path}: is not YAML: {one_line(error)}") from error
        if not isinstance(recipe, dict):
            raise UserError(f"{path}: expected the sections of a recipe, found {type(recipe).__name__}")
        return recipe

    @property
    def record(self) -> dict[str, Any]:
        """training_record.json, {} without one; its mappings are mappings, its evaluations of the form that a card shows."""
        record = self.mapping(RECORD_FILE)
        settings = record.get("settings")
        nested = {name: record.get(name) for name in ("settings", "evaluations", "machine", "versions", "best")}
        if isinstance(settings, dict):
            nested |= {f"settings.{name}": settings.get(name) for name in ("training", "data")}
        wrong = [f"its {name} is no mapping" for name, held in nested.items() if not isinstance(held, dict | None)]
        if not wrong and not all(map(_is_evaluation, (record.get("evaluations") or {}).values())):
            wrong = ["an entry of its evaluations holds no metrics that are numbers"]
        if wrong:
            raise UserError(f"{self.folder / RECORD_FILE}: is damaged ({wrong[0]}); remove or rewrite it")
        return record

    def json(self, name: str) -> Any:
        """A JSON file, None without it."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # no UTF-8, or no JSON
            raise UserError(f"{path}: is damaged ({one_line(error)}); remove or rewrite it") from error

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON file that holds fields, {} without it."""
        held = self.json(name)
        if held is not None and not isinstance(held, dict):
            raise UserError(f"{self.folder / name}: is damaged: it holds a {type(held).__name__}, expected fields")
        return held or {}


def _is_evaluation(held: Any) -> bool:
    """Whether it is of the form of `trainer_log.logged_evaluations`."""
    metrics = held.get("metrics") if isinstance(held, dict) else None
    return isinstance(metrics, dict) and all(map(is_number, metrics.values()))
