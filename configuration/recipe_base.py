"""What the recipes of all tasks have in common: the settings of a run.

A recipe is a class of two bases, so that its file reads from the experiment to the machine: the sections of its task come first,
the settings of its run after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from transformers import TrainingArguments

from reluformer.configuration.recipe_checks import (
    check_averaging,
    check_name,
    check_training,
)


@dataclass(kw_only=True)
class AveragingConfig:
    """Averaging of weights over the last checkpoints.

    Args:
        last_checkpoints: how many; 0 and 1 both keep the last weights as they are.
    """

    last_checkpoints: int = 0


@dataclass(kw_only=True)
class RunSettings:
    """The settings of a run, whatever its task.

    Args:
        averaging: of weights over the last checkpoints.
        on_divergence: what happens when the loss becomes NaN or infinite, the cross-entropy more than twice that of guessing, or
            all rows of an attention module are dead: `stop` ends the run with an error that says what to change; `record` ends
            a run whose loss is not finite and records that it did not converge; in the other cases it goes on and records what
            happened.
        training: `transformers.TrainingArguments`.
    """

    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    on_divergence: Literal["stop", "record"] = "stop"
    training: TrainingArguments

    # How the size of a batch is called, in the recipe and for a reader; the sections that a saved recipe always has.
    batch_key: ClassVar[str]
    batch_unit: ClassVar[str]
    always_written: ClassVar[frozenset[str]]

    @property
    def run_folder(self) -> Path:
        """Where everything of the run is written."""
        return Path(self.training.output_dir)

    def check_settings(self, replaced_arguments: Mapping[str, str]) -> None:
        """Raises `UserError` for a name, settings or training arguments that cannot be used; see `check_training`."""
        check_name(self.name)
        check_training(self.training, replaced_arguments)
        check_averaging(self.averaging, self.training)


@dataclass(kw_only=True)
class RowBatches(RunSettings):
    """The settings of a run whose batches are so many rows of one size, as Transformers counts them."""

    batch_key: ClassVar[str] = "training.per_device_train_batch_size"

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self.training.per_device_train_batch_size
