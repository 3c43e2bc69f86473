"""What the state of a Trainer says: how far a training came, and its evaluations. A figure is what was logged, under its name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reluformer.training.run.figures import BATCH_MEANS

_RUNTIME = "_runtime"
# What the Trainer adds to the metrics of every evaluation, and what the card tells elsewhere.
_NOT_METRICS = {
    *("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "jit_compilation_time"),
    *BATCH_MEANS,
}


def is_number(value: Any) -> bool:
    """A finite number: records write others as text."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def evaluation_of(logged: Mapping[str, Any]) -> tuple[str, dict[str, float]] | None:
    """Prefix (`eval`, `test`, `eval_<data set>`) and metrics without it; None for what is no evaluation.

    Args:
        logged: metrics as `Trainer.evaluate` and `Trainer.predict` make and log them.
    """
    prefixes = [
        name.removesuffix(_RUNTIME) for name in logged if name.endswith(_RUNTIME) and name != f"train{_RUNTIME}"
    ]
    if not prefixes:
        return None
    prefix = min(prefixes, key=len)
    metrics = {
        name.removeprefix(f"{prefix}_"): value for name, value in logged.items() if name.startswith(f"{prefix}_")
    }
    return prefix, {name: value for name, value in metrics.items() if name not in _NOT_METRICS and is_number(value)}


def logged_evaluations(history: Sequence[Mapping[str, Any]], update: int | None = None) -> dict[str, dict[str, Any]]:
    """The last evaluation of each prefix: `update` at which it was logged, and its `metrics` by name.

    Args:
        history: the log of a Trainer.
        update: evaluations at another one are left out; None: all count.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in history:
        evaluation = evaluation_of(entry)
        if evaluation is not None and evaluation[1] and update in (None, entry.get("step")):
            found[evaluation[0]] = {"update": entry.get("step"), "metrics": evaluation[1]}
    return found


def training_facts(state: Mapping[str, Any]) -> dict[str, Any]:
    """What the state of a Trainer says of the training, under the names of training_record.json; what is not there is left out.

    `highest_learning_rate`: of the log. `last_loss`: the last that was logged. `best`: the metric by which the best
    checkpoint was chosen, and its update.
    """
    history = state.get("log_history") or []
    whole = next((entry for entry in reversed(history) if f"train{_RUNTIME}" in entry), {})  # logged at the end
    rates = [entry["learning_rate"] for entry in history if is_number(entry.get("learning_rate"))]
    losses = [entry["loss"] for entry in history if is_number(entry.get("loss"))]
    best = {"metric": state.get("best_metric"), "update": state.get("best_global_step")}
    facts = {
        "updates": state.get("global_step"),
        "epochs": state.get("epoch"),
        "seconds": whole.get("train_runtime"),
        "examples_per_second": whole.get("train_samples_per_second"),
        "highest_learning_rate": max(rates, default=None),
        "last_loss": losses[-1] if losses else None,
        "best": best if all(map(is_number, best.values())) else None,
    }
    return {name: value for name, value in facts.items() if value is not None}
