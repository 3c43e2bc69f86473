"""One recipe → a trained model in its run folder: what `reluformer train` does, in order."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import datasets
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import get_reporting_integration_callbacks
from transformers.training_args import trainer_log_levels

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.configuration.errors import TrainingStopped, UserError, one_line
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.scores import SCORES
from reluformer.modeling_reluformer.compiled import library
from reluformer.records.progress import say
from reluformer.records.records import peak_memory, run_record, write_json
from reluformer.training.averaging import average_checkpoints
from reluformer.training.data.corpus import has_split
from reluformer.training.run.checkpoints import best_update, saved_processes, set_aside
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.interruptions import orderly_end, resumes_at
from reluformer.training.run.model_building import build_model, keyed, require_trainable
from reluformer.training.run.precision import precision_of
from reluformer.training.run.preparation import PreparedCorpus, prepare_corpus
from reluformer.training.run.run_folder import (
    RECORD_FILE,
    checkpoint_to_resume,
    only_training_in,
    read_record,
    settings_of,
    write_recipe,
)
from reluformer.training.scoring.evaluation import ValidationTranslation, evaluate_split
from reluformer.training.trainer import ReLUFormerTrainer
from reluformer.translating.loading import load_whole
from reluformer.translating.translation import Translator


class FinishedRun(NamedTuple):
    """A run that is trained, averaged and evaluated; `log_history` is the Trainer's, `scores` are by split.

    pairs: of the split that was evaluated first, or else trained on, as they were read.
    """

    recipe: Recipe
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    log_history: list[dict[str, Any]]
    scores: dict[str, dict[str, Any]]
    pairs: datasets.Dataset


def train(
    recipe: Recipe, *, overwrite: bool = False, document: Callable[[FinishedRun], None] | None = None
) -> FinishedRun | None:
    """Trains, averages and evaluates one run. Pictures and card are `document`'s.

    Args:
        overwrite: remove what an earlier run of this name left, rather than refuse or resume it.
        document: called with the finished run while no other training can begin in its folder, to write what else
            belongs there.

    Returns:
        The run; None in other processes than the main one, and if the training diverged.

    Raises:
        UserError: a mistake in the recipe or its data, found as early as possible.
        TrainingStopped: SIGTERM has ended the training after a checkpoint, at which the same call resumes.
    """
    check(recipe)
    _check_processes(recipe)
    is_main, folder = recipe.training.should_save, recipe.run_folder
    lock = only_training_in(folder) if is_main else contextlib.nullcontext()
    with orderly_end(folder), lock:
        # Not `local`: the processes of all machines share the folder.
        with recipe.training.main_process_first(local=False, desc="run folder"):
            resume_from = checkpoint_to_resume(recipe, overwrite=overwrite and is_main)
            if is_main:
                write_recipe(recipe)
        corpus = prepare_corpus(recipe, resume_from)
        trainer = _trainer(recipe, corpus, build_model(recipe, corpus.config))
        watch = _train(trainer, recipe, resume_from)
        averaged = []
        if watch.divergence is None:  # else weights that are no numbers are neither averaged, nor saved, nor evaluated
            averaged = _average(trainer, recipe.averaging.last_checkpoints)
            trainer.save_model()
        trainer.save_state()
        if not is_main:
            return None
        _write_record(recipe, trainer, watch, resume_from, averaged)
        if watch.divergence is not None:
            say(f"training diverged: {watch.divergence['reason']}; recorded in {folder / RECORD_FILE}")
            return None
        run = _evaluate(recipe, trainer, corpus)
        if document is not None:
            document(run)
        return run


def check(recipe: Recipe) -> None:
    """Raises the `UserError` with which `train` refuses a recipe before it looks at processes, data and the run folder.

    What the recipe alone says was checked when it was built.
    """
    require_trainable(recipe)
    with keyed("training.report_to"):
        get_reporting_integration_callbacks(recipe.training.report_to)
    for name in ("log_level", "log_level_replica"):
        if (level := getattr(recipe.training, name)) not in trainer_log_levels:
            raise UserError(f"training.{name}: {level!r} is no level; choose one of {', '.join(trainer_log_levels)}")
    for split in recipe.evaluation.splits:
        if not has_split(recipe.data, split):
            raise UserError(f"evaluation.splits: the recipe's data has no {split} split; name others or give its files")
    if recipe.training.eval_strategy != "no" and not has_split(recipe.data, "validation"):
        raise UserError("training.eval_strategy: the recipe's data has no validation split; set it to no")


def _check_processes(recipe: Recipe) -> None:
    launched, training = int(os.environ.get("WORLD_SIZE") or 1), recipe.training
    if training.world_size != launched:
        raise UserError(
            f"{launched} processes were started, but the Trainer found no device to connect them on, so that each "
            "would train alone; without GPUs, add --training.use_cpu true"
        )
    if is_sharded(training):
        if training.device.type == "cpu":
            raise UserError("FSDP was asked for, but the Trainer does not shard on a CPU; leave FSDP out, or use GPUs")
        if recipe.averaging.last_checkpoints > 1:
            raise UserError("averaging.last_checkpoints: does not go with FSDP; set it to 0, or train without FSDP")
        if recipe.evaluation.at_most and training.eval_strategy != "no":
            raise UserError("evaluation.at_most: does not go with FSDP; set it to 0, or train without FSDP")


def is_sharded(training: Any) -> bool:
    """Whether FSDP was asked for: by `training.fsdp`, or by the file given to `accelerate launch`."""
    return bool(training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def _trainer(recipe: Recipe, corpus: PreparedCorpus, model: PreTrainedModel) -> ReLUFormerTrainer:
    say(f"model: {model.num_parameters():,} parameters, attention by {model.config._attn_implementation}")
    is_scored = recipe.evaluation.at_most and recipe.training.eval_strategy != "no"
    scorer = ValidationTranslation(recipe, corpus.tokenizer, corpus.pairs["validation"]) if is_scored else None
    try:
        return ReLUFormerTrainer(
            model,
            recipe.training,
            data_collator=DataCollatorForSeq2Seq(corpus.tokenizer, model=model),
            train_dataset=corpus.encoded["train"],
            eval_dataset=corpus.encoded.get("validation"),
            processing_class=corpus.tokenizer,
            tokens_per_batch=recipe.batching.tokens_per_batch,
            translation_scorer=scorer,
            settings=settings_of(recipe),  # before the Trainer completes its arguments
        )
    except (ImportError, RuntimeError, ValueError) as error:  # of its arguments, such as report_to
        raise UserError(f"training: {one_line(error)}") from error


def _train(trainer: ReLUFormerTrainer, recipe: Recipe, resume_from: Path | None) -> DivergenceWatch:
    """All updates that are left."""
    watch = DivergenceWatch(trainer, recipe.on_divergence)
    trainer.add_callback(watch)
    if resume_from is not None:
        before, now = saved_processes(resume_from), recipe.training.world_size
        others = "" if before == now else f", written by {before} processes, with {now}: other dropout masks"
        say(f"resuming at {resume_from}{others}")
    if trainer.args.device.type == "cpu" and trainer.model.config._attn_implementation in ("fused", "reluformer"):
        library.library(large=True)  # builds it now: a loop that changed within the run would change the last digits
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    if trainer.stop_on_sigterm.stopped:
        update = trainer.state.global_step
        raise TrainingStopped(f"stopped by SIGTERM after update {update}; {resumes_at(recipe.run_folder)}")
    return watch


def _average(trainer: ReLUFormerTrainer, last_checkpoints: int) -> list[str]:
    """Puts the averaged weights into the model; names of the checkpoints, none if the recipe asks for none."""
    if last_checkpoints < 2:
        return []
    trainer.accelerator.wait_for_everyone()  # until the main process has written the last of them
    weights, folders = average_checkpoints(trainer.args.output_dir, last_checkpoints, trainer.state.global_step)
    model = trainer.accelerator.unwrap_model(trainer.model)
    # Files hold a tied tensor once; the other names of it follow by themselves.
    loaded = model.load_state_dict(weights, strict=False)
    if lost := {*loaded.unexpected_keys, *loaded.missing_keys} - {*model.all_tied_weights_keys}:
        raise RuntimeError(f"the averaged checkpoints and the model differ in {', '.join(sorted(lost))}")
    names = [folder.name for folder in folders]
    say(f"weights: the mean of {', '.join(names)}")
    return names


def _write_record(
    recipe: Recipe, trainer: ReLUFormerTrainer, watch: DivergenceWatch, resume_from: Path | None, averaged: list[str]
) -> None:
    """Writes what was measured, with what makes it traceable; `seconds` are of all parts of the training, with
    evaluation."""
    path, state = recipe.run_folder / RECORD_FILE, trainer.state
    before = read_record(recipe.run_folder)
    is_same = (before.get("updates"), before.get("averaged_checkpoints")) == (state.global_step, averaged)
    if is_same and not recipe.training.resume_from_checkpoint:
        return  # all was trained before, and only the evaluation was interrupted: nothing new was measured
    _remove_measurements(recipe.run_folder)
    history, best = state.log_history, None if averaged else best_update(recipe.training, state)
    record = {
        **run_record(None, recipe.name, recipe.training.seed),
        "updates": state.global_step,
        "epochs": state.epoch,
        "best": best and {"metric": state.best_metric, "update": best},
        "weights_of_update": best or state.global_step,
        "seconds": trainer.seconds,
        **_mean_target_tokens(history),
        "peak_memory_bytes": peak_memory(trainer.args.device),
        "parameters": trainer.model.num_parameters(),
        "processes": recipe.training.world_size,
        "precision": precision_of(recipe.training),
        "averaged_checkpoints": averaged,
        "diverged": watch.divergence,
        "dead_modules": watch.dead_modules,
        "exploded": watch.exploded,
    }
    write_json(path, record if resume_from is None else {**record, "resumed_from": str(resume_from)})


def _remove_measurements(folder: Path) -> None:
    """Removes what was measured of other weights: scores, translations and analyses."""
    for measured in (*folder.glob("evaluation.*.json"), *folder.glob("translations.*.tsv")):
        measured.unlink()
    if (analyses := folder / "analysis").is_dir():
        shutil.rmtree(set_aside(analyses))


def _mean_target_tokens(history: list[dict[str, float]]) -> dict[str, float | None]:
    """The means over all updates that were logged, None without any: a log holds those since the log before it."""
    tokens, seconds, update = 0.0, 0.0, 0
    for log in history:
        if log.get("target_tokens_per_update"):
            since = (log["step"] - update) * log["target_tokens_per_update"]
            tokens, seconds, update = tokens + since, seconds + since / log["target_tokens_per_second"], log["step"]
    per_update, per_second = (tokens / update, tokens / seconds) if tokens else (None, None)
    return {"target_tokens_per_update": per_update, "target_tokens_per_second": per_second}


def _evaluate(recipe: Recipe, trainer: ReLUFormerTrainer, corpus: PreparedCorpus) -> FinishedRun:
    """By the main process alone, which loads a model that is sharded: of shards it would wait for the other
    processes."""
    evaluation = recipe.evaluation
    if is_sharded(trainer.args):
        model = load_whole(ReLUFormerForConditionalGeneration, recipe.run_folder).to(trainer.args.device)
    else:
        # without autocast: `reluformer evaluate` computes in float32, too
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    names = ("num_beams", "length_penalty", "batch_tokens", "long_sources")
    translator = Translator(model, corpus.tokenizer, **{name: getattr(evaluation, name) for name in names})
    scores = {split: evaluate_split(recipe, split, translator, corpus.read[split]) for split in evaluation.splits}
    pairs, _ = corpus.read[next(iter(evaluation.splits), "train")]
    return FinishedRun(recipe, model, corpus.tokenizer, trainer.state.log_history, scores, pairs)


def headline(recipe: Recipe, split: str, scores: dict[str, Any]) -> str:
    """The one score that the recipe is about: `exact match: 98.80 % on 1,000 held-out sentences (test)`."""
    held_out = "training" if split == "train" else "held-out"
    score = SCORES[recipe.evaluation.headline]
    count, unit = scores["sentences"], "sentences" if recipe.data.packing is None else "packed documents"
    if score.of_documents:
        count, unit = scores["documents"], "whole documents"
    return f"{score.label}: {score.value(scores)} on {count:,} {held_out} {unit} ({split})"
