"""For a plain `Trainer`: records what the model card needs, and lets the Trainer write this package's card instead of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import SCORES_IN_TRAINING
from reluformer.hub_cards.card import write_card
from reluformer.hub_cards.model_kinds import kind_of
from reluformer.hub_cards.public_names import is_hub_id
from reluformer.hub_cards.statements import Statements
from reluformer.hub_cards.trainer_log import evaluation_of, logged_evaluations, training_facts
from reluformer.training.run.records import command_line, run_record, write_json
from reluformer.training.run.redaction import HIDDEN, last_part, public_command
from reluformer.training.run.run_folder import RECORD_FILE

# What the record keeps of the arguments: no path, no address and no token is among them.
ARGUMENTS = (
    *("learning_rate", "lr_scheduler_type", "optim", "adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm"),
    *("label_smoothing_factor", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "seed"),
)


class ModelCardCallback(TrainerCallback):
    """Writes `training_record.json` into `output_dir` when a training ends, and replaces the Trainer's `create_model_card`.

    The record holds the arguments, figures, machine and versions that `reluformer card` and `reluformer publish` show, and
    neither secrets nor paths. Evaluations and predictions after the training are added to it. `trainer.create_model_card()`
    and `trainer.push_to_hub()` write the card of `reluformer card` then.

        trainer = Seq2SeqTrainer(…)
        trainer.add_callback(ModelCardCallback(trainer, language=["de", "en"], license="cc0-1.0"))

    Args:
        trainer: to which it will be added; its model is a ReLUFormer.
        language: codes of ISO 639, of a translation the source's and the target's.
        license: of the weights, as the Hub names licences.
        dataset: id on the Hub of what the model is trained and evaluated on.

    Raises:
        UserError: another model, or a language, licence or data set that has not the Hub's form.
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
        if not isinstance(model, PreTrainedModel):
            raise UserError(
                f"ModelCardCallback: the Trainer has a {type(model).__name__}, which saves no whole model; merge the adapter "
                "and save the model with save_pretrained, then use `reluformer card --model`"
            )
        kind_of(model.config.model_type, "ModelCardCallback: the Trainer")
        self._stated = Statements.of(license=license, language=language, dataset=dataset)
        self._origin = _origin(model)
        self._trainer = trainer
        self._record: dict[str, Any] | None = None
        trainer.create_model_card = self.create_model_card

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._record = None

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        self._record = {
            **run_record(None, None, args.seed),
            "command": public_command(command) if (command := _command()) else None,
            **_figures(args, state),
            "parameters": self._trainer.accelerator.unwrap_model(self._trainer.model).num_parameters(),
            "settings": self._settings(args, state),
        }
        self._write(args)
        _draw_curve(state.log_history, Path(args.output_dir) / "training_curve.png")

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        """After the training: of the weights that it has ended with."""
        found = evaluation_of(metrics)
        if self._record is not None and found is not None and found[1]:
            prefix, values = found
            self._record["evaluations"][prefix] = {"update": self._record["weights_of_update"], "metrics": values}
            self._write(args)

    on_predict = on_evaluate

    def create_model_card(
        self,
        language: str | Sequence[str] | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """In place of the Trainer's: writes README.md into `output_dir`, in which the model must be saved.

        Args:
            language, license, dataset: as of the callback; None takes the callback's.
            model_name: that of the repository or folder, which `push_to_hub` gives; another one is refused.
            tags, finetuned_from, tasks, dataset_tags, dataset_args: refused: the card takes these from the model, or has no
                place for them.
        """
        folder, repo_id = Path(self._trainer.args.output_dir), self._trainer.hub_model_id
        own_name = repo_id.split("/")[-1] if repo_id else folder.resolve().name
        refused = {
            "model_name": model_name if model_name != own_name else None,
            "tags": tags,
            "finetuned_from": finetuned_from,
            "tasks": tasks,
            "dataset_tags": dataset_tags,
            "dataset_args": dataset_args,
        }
        if given := [name for name, value in refused.items() if value]:
            raise UserError(
                f"create_model_card: {', '.join(given)} cannot be given with ModelCardCallback; give language, license and "
                "dataset, and change the rest of README.md afterwards"
            )
        if self._trainer.is_world_process_zero():
            write_card(
                folder,
                license=license or self._stated.license,
                language=language or self._stated.language,
                dataset=dataset or self._stated.dataset,
                repo_id=repo_id,
            )

    def _settings(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
        """In the form of a recipe, as far as it has a place for them."""
        arguments = {name: _plain(getattr(args, name)) for name in ARGUMENTS}
        said = {name: getattr(self._stated, name) for name in ("license", "language", "dataset")}
        return {
            **said,
            **self._origin,
            "training": {**arguments, "warmup_steps": args.get_warmup_steps(state.max_steps)},
        }

    def _write(self, args: TrainingArguments) -> None:
        write_json(Path(args.output_dir) / RECORD_FILE, self._record)


def _figures(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Of the training as a whole, and the evaluation of the weights that it has ended with."""
    facts = training_facts(vars(state))
    took_the_best = args.load_best_model_at_end and state.best_model_checkpoint is not None
    best = state.best_global_step if took_the_best else None
    return {
        **facts,
        "weights_of_update": state.global_step if best is None else best,
        "examples_per_update": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "processes": args.world_size,
        "device": str(args.device),
        "evaluations": logged_evaluations(state.log_history, best),
    }


def _origin(model: PreTrainedModel) -> dict[str, Any]:
    """Which weights the training starts from: an id on the Hub, or a folder without its path."""
    name = model.name_or_path
    if not name:
        return {"base_model": None, "initialize_from": None}
    if is_hub_id(name):
        return {"base_model": name, "initialize_from": name}
    # `runs/<name>` tells which run it was, and nothing of the machine
    is_of_runs = Path(name).parts[:1] == ("runs",)
    return {"base_model": None, "initialize_from": name if is_of_runs else f"{HIDDEN}/{last_part(name)}"}


def _command() -> str | None:
    """The command line of a program; None in a notebook or an interpreter, where it says nothing."""
    program = Path(sys.argv[0])
    return f"python {command_line()}" if program.suffix == ".py" and "ipykernel" not in program.name else None


def _draw_curve(history: list[dict[str, Any]], path: Path) -> None:
    """Losses and learning rate; scores of a plain Trainer may be of any unit, and the curve's are of 0 to 100."""
    from reluformer.analysis.curves import holds_a_curve, plot_training_curve

    scores = {f"eval_{score.name}" for score in SCORES_IN_TRAINING}
    entries = [{name: value for name, value in entry.items() if name not in scores} for entry in history]
    if holds_a_curve(entries):
        plot_training_curve(entries, path)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
