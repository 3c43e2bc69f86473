"""A recipe of any task → its run folder: what all tasks have in common, in order."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import distributed_c10d
from transformers import PreTrainedModel

from reluformer.configuration.errors import TrainingStopped, UserError, one_line
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.splits import SPLITS
from reluformer.modeling_reluformer.fused.compiled import library
from reluformer.training.averaging import average_checkpoints
from reluformer.training.loading import load_whole
from reluformer.training.run.checkpoints import saved_processes
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.interruptions import process_group, resumes_at, told_in_one_line
from reluformer.training.run.progress import bars_are_seen, library_bars, say
from reluformer.training.run.run_folder import (
    RECORD_FILE,
    checkpoint_to_resume,
    only_training_in,
    settings_of,
    write_recipe,
)
from reluformer.training.run.training_record import write_training_record
from reluformer.training.trainer import RunTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedRun:
    """A run that is trained, averaged and evaluated.

    recipe: of the run. model, processing: in memory, the second a tokenizer or an image processor. log_history: the Trainer's.
    scores: by split.
    """

    recipe: Recipe
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

    check: Callable[[Recipe], None]
    prepare: Callable[[Recipe, Path | None], Any]
    build: Callable[[Recipe, Any], PreTrainedModel]
    trainer: Callable[[Recipe, Any, PreTrainedModel], RunTrainer]
    evaluate: Callable[[Recipe, RunTrainer, Any, str | None], FinishedRun]


def run_recipe(
    recipe: Recipe,
    task: Task,
    *,
    overwrite: bool = False,
    command: str | None = None,
    finish: Callable[[FinishedRun], None] | None = None,
) -> Path:
    """Trains, averages and evaluates one run; arguments, result and errors as in `reluformer.training.training.train`."""
    recipe.check()
    task.check(recipe)
    arguments, folder = recipe.training, recipe.run_folder
    _check_processes(recipe)
    lock = only_training_in(folder) if arguments.should_save else contextlib.nullcontext()
    with told_in_one_line(folder), library_bars(shown=bars_are_seen()), lock, process_group():
        # Not `local`: the processes of all machines share the folder.
        with arguments.main_process_first(local=False, desc="run folder"):
            resume_from = checkpoint_to_resume(recipe, overwrite=overwrite and arguments.should_save)
            if arguments.should_save:
                write_recipe(recipe)
        _turn_off_push(recipe, told=finish is None)
        data = task.prepare(recipe, resume_from)
        trainer, watch = _trainer(recipe, task, data)
        _train(trainer, recipe, resume_from)
        if watch.divergence is None:
            averaged = _average(recipe, trainer)
            trainer.save_model()
        trainer.save_state()
        if not arguments.should_save:
            return folder
        if watch.divergence is None:
            write_training_record(recipe, trainer, watch, resume_from, averaged=averaged, command=command)
            run = task.evaluate(recipe, trainer, data, command)
            if finish is not None:
                finish(run)
        else:  # weights that are no numbers are neither averaged, nor saved, nor evaluated
            write_training_record(recipe, trainer, watch, resume_from, command=command)
            say(recipe, f"training diverged: {watch.divergence.reason}; recorded in {folder / RECORD_FILE}")
    return folder


def _trainer(recipe: Recipe, task: Task, data: Any) -> tuple[RunTrainer, DivergenceWatch]:
    settings = settings_of(recipe)  # before the Trainer completes its arguments
    model = task.build(recipe, data)
    say(recipe, f"model: {model.num_parameters():,} parameters, attention by {model.config._attn_implementation}")
    try:
        trainer = task.trainer(recipe, data, model)
    except (ImportError, RuntimeError) as error:  # a package that report_to or optim needs
        raise UserError(f"training: {one_line(error)}") from error
    trainer.settings = settings
    watch = DivergenceWatch(trainer, recipe.on_divergence)
    trainer.add_callback(watch)
    return trainer, watch


def _train(trainer: RunTrainer, recipe: Recipe, resume_from: Path | None) -> None:
    """All updates that are left."""
    if resume_from is not None:
        before, now = saved_processes(resume_from), recipe.training.world_size
        others = "" if before == now else f", written by {before} processes, with {now}: other dropout masks"
        say(recipe, f"resuming at {resume_from}{others}")
    if recipe.training.device.type == "cpu" and trainer.model.config._attn_implementation in ("fused", "reluformer"):
        library.library(large=True)  # builds it now: a loop that changed within the run would change the last digits
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    if trainer.stop_on_sigterm.stopped:
        raise TrainingStopped(
            f"stopped by SIGTERM after update {trainer.state.global_step}; {resumes_at(recipe.run_folder)}"
        )


def _average(recipe: Recipe, trainer: RunTrainer) -> list[str]:
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


def _check_processes(recipe: Recipe) -> None:
    launched, training = int(os.environ.get("WORLD_SIZE") or 1), recipe.training
    if training.world_size != launched:
        raise UserError(
            f"{launched} processes were started, but the Trainer found no device to connect them on, so that each would train "
            "alone; without GPUs, add --training.use_cpu true"
        )
    if training.use_cpu and launched > 1:
        # Transformers hands ddp_timeout to the process group of GPUs alone.
        distributed_c10d._set_pg_timeout(timedelta(seconds=training.ddp_timeout))
    if is_sharded(recipe):
        if training.device.type == "cpu":
            raise UserError("FSDP was asked for, but the Trainer does not shard on a CPU; leave FSDP out, or use GPUs")
        if recipe.averaging.last_checkpoints > 1:
            raise UserError("averaging.last_checkpoints: does not go with FSDP; set it to 0, or train without FSDP")
        if getattr(recipe.evaluation, "at_most", 0) and training.eval_strategy != "no":
            raise UserError(
                "evaluation.at_most: does not go with FSDP; set it to 0 (the loss alone), or leave FSDP out"
            )


def is_sharded(recipe: Recipe) -> bool:
    """Whether FSDP was asked for: by `training.fsdp`, or by the file given to `accelerate launch`."""
    return bool(recipe.training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def _turn_off_push(recipe: Recipe, *, told: bool) -> None:
    """The Trainer's own push uploads the whole run folder, with recipe, logs and translations, at every checkpoint."""
    if recipe.training.push_to_hub and told:
        logger.warning("training.push_to_hub: only `reluformer train` publishes a run; use `reluformer publish`")
    recipe.training.push_to_hub = False


def require_splits(recipe: Recipe, has_split: Callable[[Any, str], bool]) -> None:
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


def splits_to_read(recipe: Recipe) -> list[str]:
    """The splits that training or evaluation reads, in the order of `SPLITS`."""
    wanted = {"train", *recipe.evaluation.splits}
    if recipe.training.eval_strategy != "no":
        wanted.add("validation")
    return [split for split in SPLITS if split in wanted]


def model_to_evaluate(recipe: Recipe, trainer: RunTrainer, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    """The trained model for the main process, which evaluates alone: of shards it would wait for the other processes."""
    if is_sharded(recipe):
        model = load_whole(model_class, recipe.run_folder).to(recipe.training.device)
    else:
        model = trainer.accelerator.unwrap_model(trainer.model)
    if recipe.evaluation.attn_implementation is not None:
        model.set_attn_implementation(recipe.evaluation.attn_implementation)
    return model
