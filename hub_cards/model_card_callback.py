"""For a plain `Trainer`: records what the model card needs, and lets the Trainer write this package's card instead of
its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from reluformer.analysis.curves import plot_training_curve
from reluformer.hub_cards.card import write_card
from reluformer.hub_cards.model_folder import is_hub_id, is_number, kind_of
from reluformer.records.records import command_line, run_record, write_json
from reluformer.records.redaction import public_text
from reluformer.training.run.checkpoints import best_update
from reluformer.training.run.run_folder import RECORD_FILE
from reluformer.training.run.token_means import BATCH_MEANS

# What the record keeps of the arguments: no path, no address and no token is among them.
ARGUMENTS = (
    "learning_rate",
    "lr_scheduler_type",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "weight_decay",
    "max_grad_norm",
    "label_smoothing_factor",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "bf16",
    "fp16",
    "seed",
)
# What the Trainer adds to the metrics of every evaluation, and what the card shows elsewhere.
_NOT_METRICS = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time", *BATCH_MEANS}


class ModelCardCallback(TrainerCallback):
    """Writes `training_record.json` into `output_dir` when a training ends, and replaces the Trainer's
    `create_model_card`.

    The record holds the arguments, results, machine and versions that `reluformer card` and `reluformer publish` show,
    and neither secrets nor paths. Its scores are those of the weights that the training ends with, or of the best ones
    with `load_best_model_at_end`; evaluations and predictions after the training are added.
    `trainer.create_model_card()` and `trainer.push_to_hub()` write the card of `reluformer card` then.

        trainer = Seq2SeqTrainer(…)
        trainer.add_callback(ModelCardCallback(trainer, language=["de", "en"], license="cc0-1.0"))

    Args:
        trainer: to which it will be added; its model is a ReLUFormer.
        language: codes of ISO 639, of a translation the source's and the target's.
        license: of the weights, as the Hub names licences.
        dataset: id on the Hub of what the model is trained and evaluated on.

    Raises:
        UserError: another model.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        language: str | Sequence[str] | None = None,
        license: str | None = None,
        dataset: str | None = None,
    ) -> None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        kind_of(model.config.model_type, "ModelCardCallback: the Trainer")
        self._told = {"license": license, "language": language, "dataset": dataset}
        name = model.name_or_path
        self._base = {"initialize_from": public_text(name), "base_model": name if name and is_hub_id(name) else None}
        self._trainer = trainer
        self._record: dict[str, Any] | None = None
        trainer.create_model_card = self.create_model_card

    def on_train_begin(self, *arguments: Any, **kwargs: Any) -> None:
        self._record = None

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        arguments = args.to_sanitized_dict()
        training = {name: arguments[name] for name in ARGUMENTS}
        training["warmup_steps"] = args.get_warmup_steps(state.max_steps)
        # In a notebook or an interpreter, the command line says nothing.
        is_script = sys.argv[0].endswith(".py") and "ipykernel" not in sys.argv[0]
        self._record = {
            **run_record(None, None, args.seed),
            "command": public_text(f"python {command_line()}") if is_script else None,
            **_training_facts(args, state),
            "parameters": self._trainer.accelerator.unwrap_model(self._trainer.model).num_parameters(),
            "settings": {**self._told, **self._base, "training": training},
        }
        write_json(Path(args.output_dir) / RECORD_FILE, self._record)
        state.save_to_json(str(Path(args.output_dir) / TRAINER_STATE_NAME))
        plot_training_curve(state.log_history, Path(args.output_dir) / "training_curve.png")

    def on_evaluate(self, args: TrainingArguments, *others: Any, metrics: Mapping[str, Any], **kwargs: Any) -> None:
        """After the training: of the weights that it has ended with."""
        if self._record is not None:
            self._record["evaluations"] |= evaluation_of(metrics)
            write_json(Path(args.output_dir) / RECORD_FILE, self._record)

    on_predict = on_evaluate

    def create_model_card(self, language: Any = None, license: Any = None, **told: Any) -> None:
        """In place of the Trainer's: writes README.md into `output_dir`, in which the model must be saved.

        Args:
            language, license, told: with `dataset`, in place of the callback's. What else the Trainer tells, the card
                knows.
        """
        changes = {"language": language, "license": license, "dataset": told.get("dataset")}
        if self._trainer.is_world_process_zero():
            folder, repo_id = self._trainer.args.output_dir, self._trainer.hub_model_id
            write_card(folder, repo_id=repo_id, **{name: changes[name] or value for name, value in self._told.items()})


def _training_facts(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Under the names of training_record.json, None for what is not known."""
    whole = next((entry for entry in reversed(state.log_history) if "train_runtime" in entry), {})  # logged at the end
    best = best_update(args, state)
    weights_of = best or state.global_step
    evaluations: dict[str, dict[str, float]] = {}
    for entry in state.log_history:
        evaluations |= evaluation_of(entry) if entry.get("step") == weights_of else {}
    return {
        "updates": state.global_step,
        "epochs": state.epoch,
        "seconds": whole.get("train_runtime"),
        "examples_per_second": whole.get("train_samples_per_second"),
        "examples_per_update": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "best": best and {"metric": state.best_metric, "update": best},
        "weights_of_update": weights_of,
        "processes": args.world_size,
        "device": str(args.device),
        "evaluations": evaluations,
    }


def evaluation_of(logged: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Metrics without their prefix (`eval`, `test`, `eval_<data set>`), by this prefix; {} for what is no evaluation.

    Args:
        logged: metrics as `Trainer.evaluate` and `Trainer.predict` make and log them.
    """
    times = [name.removesuffix("_runtime") for name in logged if name.endswith("_runtime")]
    prefix = min(times, key=len, default="train")
    if prefix == "train":
        return {}
    metrics = {name.removeprefix(f"{prefix}_"): held for name, held in logged.items() if name.startswith(f"{prefix}_")}
    return {prefix: {name: held for name, held in metrics.items() if name not in _NOT_METRICS and is_number(held)}}
