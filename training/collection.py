"""Everything measured in one run, read from its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from reluformer.analysis.curves import read_log_history
from reluformer.training.errors import UserError
from reluformer.training.run_folder import RECIPE_FILE, RECORD_FILE


def collect(folder: Path) -> dict[str, Any]:
    """Everything measured in one run: `recipe`, `training` (its record), `evaluations` by split, `log_history`.

    Raises:
        UserError: the folder is not that of a run that is finished and evaluated, or that was recorded as diverged.
    """
    evaluations = {path.name.split(".")[1]: read_json(path) for path in sorted(folder.glob("evaluation.*.json"))}
    record = read_json(folder / RECORD_FILE) if (folder / RECORD_FILE).is_file() else None
    if record is None or not (evaluations or record.get("diverged")):
        raise UserError(
            f"{folder}: expected a finished run with {RECORD_FILE} and evaluation.<split>.json; run it first"
        )
    return {
        "recipe": yaml.safe_load((folder / RECIPE_FILE).read_text(encoding="utf-8")),
        "training": record,
        "evaluations": evaluations,
        "log_history": read_log_history(folder),
    }


def last_figure(log_history: Iterable[Mapping[str, Any]], name: str) -> Any:
    """The last logged value of a name; None if there is none."""
    values = [entry[name] for entry in log_history if entry.get(name) is not None]
    return values[-1] if values else None


def training_seconds(log_history: Iterable[Mapping[str, Any]]) -> float:
    """Seconds of all logged updates, evaluation not counted; of every part of a run that was interrupted."""
    seconds, update = 0.0, 0
    for entry in log_history:
        if "target_tokens_per_update" in entry:
            tokens = (entry["step"] - update) * entry["target_tokens_per_update"]
            seconds += tokens / entry["target_tokens_per_second"]
            update = entry["step"]
    return seconds


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
