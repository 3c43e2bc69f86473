"""One recipe → a trained model in its run folder: what `reluformer train` does, in order."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainingArguments
from transformers.trainer_utils import TrainOutput

from reluformer.configuration.errors import TrainingStopped, UserError
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.scores import SCORES
from reluformer.training.averaging import average_checkpoints
from reluformer.training.data.encoding import first_encoded_pairs
from reluformer.training.data.preparation import PreparedCorpus, prepare_corpus
from reluformer.training.data.splits import has_split
from reluformer.training.loading import load_model_and_tokenizer
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.global_batch import change_of_processes
from reluformer.training.run.interruptions import told_in_one_line, where_it_goes_on
from reluformer.training.run.launch import check_launch, is_sharded
from reluformer.training.run.model_building import build_config, build_model
from reluformer.training.run.needed_packages import check_packages
from reluformer.training.run.overwriting import removed_unless_it_fails
from reluformer.training.run.progress import say
from reluformer.training.run.resumption import write_training_files
from reluformer.training.run.run_folder import RECORD_FILE, checkpoint_to_resume, write_recipe
from reluformer.training.run.training_record import training_record, write_training_record
from reluformer.training.scoring.split_evaluation import evaluate_split
from reluformer.training.scoring.validation import ValidationTranslation
from reluformer.training.trainer import ReLUFormerTrainer
from reluformer.training.translation import Translator

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedRun:
    """A run that is trained, averaged and evaluated.

    recipe: of the run. model, tokenizer: in memory. log_history: the Trainer's. scores: by split.
    """

    recipe: Recipe
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    log_history: list[dict[str, Any]]
    scores: dict[str, dict[str, Any]]


def train(
    recipe: Recipe,
    *,
    overwrite: bool = False,
    command: str | None = None,
    finish: Callable[[FinishedRun], None] | None = None,
) -> Path:
    """Trains, averages and evaluates one run. Pictures, card and publishing are the command's, which gives them as `finish`.

    Args:
        recipe: the experiment.
        overwrite: delete what an earlier run of this name has left, rather than refuse or resume.
        command: the command line, for the record; None takes the process' own.
        finish: what is still to be done with a run that did not diverge; called by the main process.

    Returns:
        The run folder.

    Raises:
        UserError: a mistake in the recipe or its data, found as early as possible; a disk that cannot be written to.
        TrainingStopped: SIGTERM has ended the training after a checkpoint, at which the same call goes on.
    """
    recipe.check()
    with told_in_one_line(recipe.run_folder):
        return _train(recipe, overwrite=overwrite, command=command, finish=finish)


def _train(
    recipe: Recipe, *, overwrite: bool, command: str | None, finish: Callable[[FinishedRun], None] | None
) -> Path:
    _check_before_reading(recipe)
    arguments, folder = recipe.training, recipe.run_folder
    # Not `local`: the processes of all machines share the folder.
    with arguments.main_process_first(local=False, desc="run folder"):
        resume_from = checkpoint_to_resume(recipe, overwrite=overwrite and arguments.should_save)
    corpus, model = _begin(recipe, resume_from)
    _turn_off_push(arguments, told=finish is None)
    say(recipe, f"model: {model.num_parameters():,} parameters, attention by {model.config._attn_implementation}")
    trainer = _trainer(recipe, corpus, model)
    watch = DivergenceWatch(trainer, recipe.on_divergence)
    trainer.add_callback(watch)
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
            run = _evaluate(recipe, trainer, corpus.tokenizer, command)
            if finish is not None:
                finish(run)
            if watch.exploded is not None:
                say(recipe, f"warning: training diverged, see `exploded` in {folder / RECORD_FILE}")
        else:
            say(recipe, f"training diverged: {watch.divergence.reason}; recorded in {folder / RECORD_FILE}")
    return folder


def _check_before_reading(recipe: Recipe) -> None:
    """Finds what is wrong with the recipe before its corpus is read."""
    check_launch(recipe)
    build_config(recipe)
    check_packages(recipe)
    for split in recipe.evaluation.splits:
        if not has_split(recipe.data, split):
            raise UserError(f"evaluation.splits: the recipe's data has no {split} split; name others or give its files")


def _begin(recipe: Recipe, resume_from: Path | None) -> tuple[PreparedCorpus, PreTrainedModel]:
    """Corpus and model. Until both are there, a run that is to be overwritten comes back if anything fails."""
    folder, should_save = recipe.run_folder, recipe.training.should_save
    with removed_unless_it_fails(folder) if should_save else contextlib.nullcontext():
        if should_save:
            write_recipe(recipe)
        corpus = prepare_corpus(recipe, resume_from)
        if should_save:
            write_training_files(recipe.data, folder, anew=resume_from is None)
        return corpus, build_model(recipe, corpus.tokenizer)


def _turn_off_push(arguments: Seq2SeqTrainingArguments, *, told: bool) -> None:
    """The Trainer's own push uploads the whole run folder, with recipe, logs and translations, at every checkpoint.

    The recipe in the run folder still says what was asked for.
    """
    if arguments.push_to_hub:
        arguments.push_to_hub = False
        if told:
            logger.warning("training.push_to_hub: only `reluformer train` publishes a run; use `reluformer publish`")


def _update(
    recipe: Recipe, trainer: ReLUFormerTrainer, watch: DivergenceWatch, resume_from: Path | None
) -> tuple[TrainOutput, float]:
    """All updates that are left, and the seconds that they took."""
    if resume_from is not None:
        change = change_of_processes(recipe, resume_from)
        say(recipe, f"going on at {resume_from}{f' ({change})' if change else ''}")
    started = time.perf_counter()
    with trainer.stop_on_sigterm.listening():
        output = trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    seconds = time.perf_counter() - started
    if trainer.stop_on_sigterm.stopped and watch.divergence is None:
        going_on = where_it_goes_on(recipe.run_folder)
        raise TrainingStopped(f"stopped by SIGTERM after update {trainer.state.global_step}; {going_on}")
    return output, seconds


def _trainer(recipe: Recipe, corpus: PreparedCorpus, model: Any) -> ReLUFormerTrainer:
    scorer, at_most = None, recipe.evaluation.at_most
    if at_most and recipe.training.eval_strategy != "no":
        chosen = _scored_pairs(recipe, corpus, at_most)
        scorer = ValidationTranslation(
            corpus.tokenizer,
            list(chosen["source"]),
            list(chosen["target"]),
            recipe.evaluation.num_beams,
            recipe.evaluation.length_penalty,
            recipe.evaluation.batch_tokens,
        )
    return ReLUFormerTrainer(
        model,
        recipe.training,
        data_collator=DataCollatorForSeq2Seq(corpus.tokenizer, model=model),
        train_dataset=corpus.encoded["train"],
        eval_dataset=corpus.encoded.get("validation"),
        processing_class=corpus.tokenizer,
        tokens_per_batch=recipe.batching.tokens_per_batch,
        translation_scorer=scorer,
    )


def _scored_pairs(recipe: Recipe, corpus: PreparedCorpus, at_most: int) -> datasets.Dataset:
    """The first validation pairs of those whose loss is computed: what encoding has skipped is not translated either."""
    pairs = corpus.pairs["validation"]
    if recipe.data.packing is not None:  # encoded as they are
        return pairs.select(range(min(at_most, len(pairs))))
    return first_encoded_pairs(pairs, corpus.tokenizer, max_length=recipe.data.max_length, at_most=at_most)


def _average(recipe: Recipe, trainer: ReLUFormerTrainer) -> list[str]:
    """Puts the averaged weights into the model; names of the checkpoints, none if the recipe asks for none."""
    last = recipe.averaging.last_checkpoints
    if last < 2:
        return []
    trainer.accelerator.wait_for_everyone()  # until the main process has written the last of them
    averaged = average_checkpoints(recipe.run_folder, last)
    model = trainer.accelerator.unwrap_model(trainer.model)
    # Files hold a tied tensor once; the other names of it follow by themselves.
    missing, unexpected = model.load_state_dict(averaged.state_dict, strict=False)
    untied = set(missing) - set(model.all_tied_weights_keys)
    if untied or unexpected:
        raise RuntimeError(f"averaged weights do not fit the model: missing {untied}, unexpected {unexpected}")
    names = [folder.name for folder in averaged.folders]
    say(recipe, f"weights: the mean of {', '.join(names)}")
    return names


def _evaluate(
    recipe: Recipe, trainer: ReLUFormerTrainer, tokenizer: PreTrainedTokenizerBase, command: str | None
) -> FinishedRun:
    evaluation = recipe.evaluation
    model = _whole_model(recipe, trainer)
    if evaluation.attn_implementation is not None:
        model.set_attn_implementation(evaluation.attn_implementation)
    translator = Translator(
        model,
        tokenizer,
        num_beams=evaluation.num_beams,
        length_penalty=evaluation.length_penalty,
        batch_tokens=evaluation.batch_tokens,
        long_sources=evaluation.long_sources,
    )
    scores = {split: evaluate_split(recipe, split, translator, command=command) for split in evaluation.splits}
    return FinishedRun(recipe, model, tokenizer, trainer.state.log_history, scores)


def _whole_model(recipe: Recipe, trainer: ReLUFormerTrainer) -> PreTrainedModel:
    """The trained model for the main process, which evaluates alone: of shards it would wait for the other processes."""
    if is_sharded(recipe):
        return load_model_and_tokenizer(recipe.run_folder)[0].to(recipe.training.device)
    return trainer.accelerator.unwrap_model(trainer.model)


def headline(recipe: Recipe, split: str, scores: dict[str, Any]) -> str:
    """The one score that the recipe is about: `exact match: 98.80 % on 1,000 held-out sentences (test)`."""
    score = SCORES[recipe.evaluation.headline]
    held_out = "training" if split == "train" else "held-out"
    count, unit = scores["sentences"], "sentences" if recipe.data.packing is None else "packed documents"
    if score.of_documents:
        count, unit = scores["documents"], "whole documents"
    return f"{score.label}: {score.value(scores)} on {count:,} {held_out} {unit} ({split})"
