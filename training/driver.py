"""A recipe of any task → its run folder: what all tasks have in common, in order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import TrainOutput

from reluformer.configuration.errors import TrainingStopped, UserError
from reluformer.configuration.recipe_parser import AnyRecipe
from reluformer.configuration.splits import SPLITS
from reluformer.training.averaging import average_checkpoints
from reluformer.training.loading import load_whole
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.global_batch import change_of_processes
from reluformer.training.run.interruptions import told_in_one_line, where_it_goes_on
from reluformer.training.run.launch import check_launch, is_sharded
from reluformer.training.run.overwriting import removed_unless_it_fails
from reluformer.training.run.progress import bars_are_seen, library_bars, say
from reluformer.training.run.resumption import write_training_files
from reluformer.training.run.run_folder import RECORD_FILE, checkpoint_to_resume, write_recipe
from reluformer.training.run.run_lock import only_training_in
from reluformer.training.run.training_record import training_record, write_training_record
from reluformer.training.run_trainer import RunTrainer
from reluformer.training.zeros import ZerosCallback

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedRun:
    """A run that is trained, averaged and evaluated.

    recipe: of the run. model, processing: in memory, the second a tokenizer or an image processor. log_history: the Trainer's.
    scores: by split.
    """

    recipe: AnyRecipe
    model: PreTrainedModel
    processing: Any
    log_history: list[dict[str, Any]]
    scores: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """What a task does in each step of a run; `data` is what its `prepare` returns.

    check: finds what is wrong with the recipe before its data are read.
    prepare: (recipe, checkpoint or None) → data. build: (recipe, data) → the model that training starts with.
    trainer: (recipe, data, model) → the trainer. evaluate: (recipe, trainer, data, command) → the finished run.
    """

    check: Callable[[AnyRecipe], None]
    prepare: Callable[[AnyRecipe, Path | None], Any]
    build: Callable[[AnyRecipe, Any], PreTrainedModel]
    trainer: Callable[[AnyRecipe, Any, PreTrainedModel], RunTrainer]
    evaluate: Callable[[AnyRecipe, RunTrainer, Any, str | None], FinishedRun]


def run_recipe(
    recipe: AnyRecipe,
    task: Task,
    *,
    overwrite: bool = False,
    command: str | None = None,
    finish: Callable[[FinishedRun], None] | None = None,
) -> Path:
    """Trains, averages and evaluates one run; arguments, result and errors as in `reluformer.training.training.train`."""
    recipe.check()
    with told_in_one_line(recipe.run_folder), library_bars(shown=bars_are_seen()):
        check_launch(recipe)
        task.check(recipe)
        with only_training_in(recipe.run_folder) if recipe.training.should_save else contextlib.nullcontext():
            return _run(recipe, task, overwrite=overwrite, command=command, finish=finish)


def _run(
    recipe: AnyRecipe, task: Task, *, overwrite: bool, command: str | None, finish: Callable[[FinishedRun], None] | None
) -> Path:
    arguments, folder = recipe.training, recipe.run_folder
    # Not `local`: the processes of all machines share the folder.
    with arguments.main_process_first(local=False, desc="run folder"):
        resume_from = checkpoint_to_resume(recipe, overwrite=overwrite and arguments.should_save)
    data, model = _begin(recipe, task, resume_from)
    _turn_off_push(arguments, told=finish is None)
    say(recipe, f"model: {model.num_parameters():,} parameters, attention by {model.config._attn_implementation}")
    trainer = task.trainer(recipe, data, model)
    watch = DivergenceWatch(trainer, recipe.on_divergence)
    trainer.add_callback(watch)
    if recipe.zeros is not None:
        trainer.add_callback(ZerosCallback(recipe.zeros))
    output, seconds = _update(recipe, trainer, watch, resume_from)
    # Weights that are no numbers are neither averaged, nor saved, nor evaluated.
    converged = watch.divergence is None
    averaged = _average(recipe, trainer) if converged else []
    if converged:
        trainer.save_model()
    trainer.save_state()
    if arguments.should_save:
        measured = training_record(recipe, trainer, output, seconds, averaged, command)
        write_training_record(recipe, trainer, watch, resume_from, measured)
        if converged:
            run = task.evaluate(recipe, trainer, data, command)
            if finish is not None:
                finish(run)
            if watch.exploded is not None:
                say(recipe, f"warning: training diverged, see `exploded` in {folder / RECORD_FILE}")
        else:
            say(recipe, f"training diverged: {watch.divergence.reason}; recorded in {folder / RECORD_FILE}")
    return folder


def _begin(recipe: AnyRecipe, task: Task, resume_from: Path | None) -> tuple[Any, PreTrainedModel]:
    """Data and model. Until both are there, a run that is to be overwritten comes back if anything fails."""
    folder, should_save = recipe.run_folder, recipe.training.should_save
    with removed_unless_it_fails(folder) if should_save else contextlib.nullcontext():
        if should_save:
            write_recipe(recipe)
        data = task.prepare(recipe, resume_from)
        if should_save:
            write_training_files(recipe.data, folder, anew=resume_from is None)
        return data, task.build(recipe, data)


def _turn_off_push(arguments: TrainingArguments, *, told: bool) -> None:
    """The Trainer's own push uploads the whole run folder, with recipe, logs and translations, at every checkpoint.

    The recipe in the run folder still says what was asked for.
    """
    if arguments.push_to_hub:
        arguments.push_to_hub = False
        if told:
            logger.warning("training.push_to_hub: only `reluformer train` publishes a run; use `reluformer publish`")


def _update(
    recipe: AnyRecipe, trainer: RunTrainer, watch: DivergenceWatch, resume_from: Path | None
) -> tuple[TrainOutput, float | None]:
    """All updates that are left, and the seconds that the whole training has taken, if that is known."""
    if resume_from is not None:
        change = change_of_processes(recipe, resume_from)
        say(recipe, f"going on at {resume_from}{f' ({change})' if change else ''}")
    with trainer.stop_on_sigterm.listening():
        output = trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    seconds = trainer.seconds
    if trainer.stop_on_sigterm.stopped and watch.divergence is None:
        going_on = where_it_goes_on(recipe.run_folder)
        raise TrainingStopped(f"stopped by SIGTERM after update {trainer.state.global_step}; {going_on}")
    return output, seconds


def _average(recipe: AnyRecipe, trainer: RunTrainer) -> list[str]:
    """Puts the averaged weights into the model; names of the checkpoints, none if the recipe asks for none."""
    last = recipe.averaging.last_checkpoints
    if last < 2:
        return []
    trainer.accelerator.wait_for_everyone()  # until the main process has written the last of them
    averaged = average_checkpoints(recipe.run_folder, last, trainer.state.global_step)
    model = trainer.accelerator.unwrap_model(trainer.model)
    # Files hold a tied tensor once; the other names of it follow by themselves.
    missing, unexpected = model.load_state_dict(averaged.state_dict, strict=False)
    untied = set(missing) - set(model.all_tied_weights_keys)
    if untied or unexpected:
        raise RuntimeError(f"averaged weights do not fit the model: missing {untied}, unexpected {unexpected}")
    names = [folder.name for folder in averaged.folders]
    say(recipe, f"weights: the mean of {', '.join(names)}")
    return names


def require_splits(recipe: AnyRecipe, has_split: Callable[[Any, str], bool]) -> None:
    """Raises a `UserError` where the data lack a split that training or evaluation will read.

    Args:
        recipe: of the run.
        has_split: (the recipe's data, split) → whether they have it.
    """
    for split in recipe.evaluation.splits:
        if not has_split(recipe.data, split):
            raise UserError(f"evaluation.splits: the recipe's data has no {split} split; name others or give its files")
    if recipe.training.eval_strategy != "no" and not has_split(recipe.data, "validation"):
        raise UserError(
            "training.eval_strategy: the recipe's data has no validation split; set it to no, or give files"
        )


def splits_to_read(recipe: AnyRecipe) -> list[str]:
    """The splits that training or evaluation reads, in the order of `SPLITS`."""
    wanted = {"train", *recipe.evaluation.splits}
    if recipe.training.eval_strategy != "no":
        wanted.add("validation")
    return [split for split in SPLITS if split in wanted]


def model_to_evaluate(recipe: AnyRecipe, trainer: RunTrainer, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    """The trained model for the main process, which evaluates alone: of shards it would wait for the other processes."""
    if is_sharded(recipe):
        model = load_whole(model_class, recipe.run_folder).to(recipe.training.device)
    else:
        model = trainer.accelerator.unwrap_model(trainer.model)
    if recipe.evaluation.attn_implementation is not None:
        model.set_attn_implementation(recipe.evaluation.attn_implementation)
    return model
