"""Everything measured in one run, read from its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from reluformer.configuration.errors import UserError
from reluformer.training.run.redaction import public_values, without_secrets
from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE

_OF_UPDATES = "_per_update"


def collect(folder: Path) -> dict[str, Any]:
    """Everything measured in one run: `recipe` (without secrets), `training` (its record), `evaluations` by split, `log_history`.

    Raises:
        UserError: the folder is not that of a run that is finished and evaluated, or that was recorded as diverged.
    """
    if not (folder / RECORD_FILE).is_file() or unevaluated_splits(folder):
        raise UserError(
            f"{folder}: expected a finished run with {RECORD_FILE} and, for each split that its recipe evaluates, "
            "evaluation.<split>.json; run it first"
        )
    return {
        "recipe": public_values(_recipe(folder), without_secrets),
        "training": read_json(folder / RECORD_FILE),
        "evaluations": {path.name.split(".")[1]: read_json(path) for path in sorted(folder.glob("evaluation.*.json"))},
        "log_history": read_log_history(folder),
    }


def unevaluated_splits(folder: Path) -> list[str]:
    """What a run whose training is over has left to translate: nothing if it diverged, for want of a model."""
    if read_json(folder / RECORD_FILE).get("diverged"):
        return []
    wanted = _recipe(folder)["evaluation"]["splits"]
    return [split for split in wanted if not (folder / f"evaluation.{split}.json").is_file()]


def _recipe(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / RECIPE_FILE).read_text(encoding="utf-8"))


def read_log_history(folder: Path) -> list[dict[str, Any]]:
    """The log of a run: `log_history` of its trainer_state.json."""
    return read_json(folder / "trainer_state.json")["log_history"]


def last_figure(log_history: Iterable[Mapping[str, Any]], name: str, count: int = 1) -> float | None:
    """The mean of the last `count` logged values of a name; None if there are fewer."""
    values = [entry[name] for entry in log_history if entry.get(name) is not None]
    return fmean(values[-count:]) if len(values) >= count else None


def training_seconds(log_history: Iterable[Mapping[str, Any]]) -> float:
    """Seconds of all logged updates and of the validations between them; of every part of a run that was interrupted.

    Data that are prepared, a compilation before the first update and translations afterwards are not counted.
    """
    seconds, update = 0.0, 0
    for entry in log_history:
        seconds += entry.get("eval_runtime", 0.0)
        unit = next((name.removesuffix(_OF_UPDATES) for name in entry if name.endswith(_OF_UPDATES)), None)
        if unit is not None:  # target tokens, or images
            seconds += (entry["step"] - update) * entry[f"{unit}_per_update"] / entry[f"{unit}_per_second"]
            update = entry["step"]
    return seconds


def cpu_seconds(log_history: Iterable[Mapping[str, Any]]) -> float | None:
    """CPU seconds of all logged updates, on all threads of the process: a machine that does something else, or a process that is
    halted, adds nothing. None where the log is older than this figure."""
    found = [entry["cpu_seconds"] for entry in log_history if "cpu_seconds" in entry]
    return sum(found) if found else None


def read_json(path: Path) -> Any:
    """The content of a file of JSON."""
    return json.loads(path.read_text(encoding="utf-8"))
