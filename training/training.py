"""One recipe → a trained model in its run folder: what `reluformer train` does, in order."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from tqdm.auto import tqdm
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import TrainOutput

from reluformer.configuration.errors import TrainingStopped, UserError, one_line
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.scores import SCORES
from reluformer.training.averaging import average_checkpoints
from reluformer.training.data.corpora import CorpusReport
from reluformer.training.data.documents import PackingReport
from reluformer.training.data.encoding import encode_pairs, first_encoded_pairs
from reluformer.training.data.splits import has_split, load_split, pack_split
from reluformer.training.loading import load_model_and_tokenizer
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.global_batch import change_of_processes
from reluformer.training.run.interruptions import told_in_one_line, where_it_goes_on
from reluformer.training.run.launch import check_launch, is_sharded
from reluformer.training.run.model_building import build_config, build_model
from reluformer.training.run.needed_packages import check_packages
from reluformer.training.run.overwriting import removed_unless_it_fails
from reluformer.training.run.records import run_record, write_json
from reluformer.training.run.resumption import require_same_tokenizer, write_training_files
from reluformer.training.run.run_folder import RECORD_FILE, checkpoint_to_resume, write_recipe
from reluformer.training.scoring.evaluation import evaluate_run, print_samples, read_translations
from reluformer.training.scoring.long_sources import SourceEncoder
from reluformer.training.scoring.metrics import describe_scores
from reluformer.training.scoring.validation import ValidationTranslation
from reluformer.training.tokenization import MosesStep, train_tokenizer
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
    check_launch(recipe)
    build_config(recipe)
    check_packages(recipe)
    for split in recipe.evaluation.splits:
        if not has_split(recipe.data, split):
            raise UserError(f"evaluation.splits: the recipe's data has no {split} split; name others or give its files")
    arguments, folder = recipe.training, recipe.run_folder
    # Not `local`: the processes of all machines share the folder.
    with arguments.main_process_first(local=False, desc="run folder"):
        resume_from = checkpoint_to_resume(recipe, overwrite=overwrite and arguments.should_save)
    with removed_unless_it_fails(folder) if arguments.should_save else contextlib.nullcontext():
        if arguments.should_save:
            write_recipe(recipe)
        corpus = prepare_corpus(recipe, resume_from)
        if arguments.should_save:
            write_training_files(recipe.data, folder, anew=resume_from is None)
        model = build_model(recipe, corpus.tokenizer)
    if arguments.push_to_hub:  # the recipe in the run folder says so
        # The Trainer's own push uploads the whole run folder, with recipe, logs and translations, at every checkpoint.
        arguments.push_to_hub = False
        if finish is None:
            logger.warning("training.push_to_hub: only `reluformer train` publishes a run; use `reluformer publish`")
    _say(recipe, f"model: {model.num_parameters():,} parameters, attention by {model.config._attn_implementation}")
    trainer = _trainer(recipe, corpus, model)
    watch = DivergenceWatch(trainer, recipe.on_divergence)
    trainer.add_callback(watch)
    if resume_from is not None:
        change = change_of_processes(recipe, resume_from)
        _say(recipe, f"going on at {resume_from}{f' ({change})' if change else ''}")
    started = time.perf_counter()
    with trainer.stop_on_sigterm.listening():
        output = trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    seconds = time.perf_counter() - started
    if trainer.stop_on_sigterm.stopped and watch.divergence is None:
        going_on = where_it_goes_on(folder)
        raise TrainingStopped(f"stopped by SIGTERM after update {trainer.state.global_step}; {going_on}")
    # Weights that are no numbers are neither averaged, nor saved, nor evaluated.
    converged = watch.divergence is None
    averaged = _average(recipe, trainer) if converged else []
    if converged:
        trainer.save_model()
    trainer.save_state()
    if arguments.should_save:
        record = training_record(recipe, trainer, output, seconds, averaged, command)
        record |= {"diverged": watch.divergence, "dead_modules": watch.dead_modules, "exploded": watch.exploded}
        if resume_from is not None:
            record["resumed_from"] = str(resume_from)
            if resume_from.name == f"checkpoint-{trainer.state.global_step}":
                record["training_loss"] = None  # all updates were made before
        # Where there is one already, all was trained, and only the evaluation was interrupted: nothing new was measured.
        if arguments.resume_from_checkpoint or not (folder / RECORD_FILE).is_file():
            write_json(folder / RECORD_FILE, record)
        if converged:
            run = _evaluate(recipe, trainer, corpus.tokenizer, command)
            if finish is not None:
                finish(run)
            if watch.exploded is not None:
                _say(recipe, f"warning: training diverged, see `exploded` in {folder / RECORD_FILE}")
        else:
            _say(recipe, f"training diverged: {watch.divergence.reason}; recorded in {folder / RECORD_FILE}")
    return folder


@dataclass(frozen=True)
class PreparedCorpus:
    """`encoded` (token ids) of the training and validation splits, with packing of the evaluated ones too, and `pairs` (plain
    text) of all but the training split: sentences, or packed documents where the recipe packs."""

    tokenizer: PreTrainedTokenizerBase
    pairs: dict[str, datasets.Dataset]
    encoded: dict[str, datasets.Dataset]


def prepare_corpus(recipe: Recipe, resume_from: Path | None = None) -> PreparedCorpus:
    """Reads the splits for training, trains or loads the tokenizer, encodes; writes the reports into the run folder.

    Args:
        recipe: of the run.
        resume_from: a checkpoint; take the tokenizer that the run has trained already, and compare it with the checkpoint's.

    Raises:
        UserError: files that cannot be used, a split with no pair left, sources of an evaluated split that are too long, or a
            tokenizer that has become another one.
    """
    folder, data = recipe.run_folder, recipe.data
    reports: list[CorpusReport] = []
    packings: list[PackingReport] = []
    pairs, encoded = {}, {}
    splits = [split for split in ("train", "validation") if has_split(data, split)]
    if recipe.training.eval_strategy != "no" and "validation" not in splits:
        raise UserError(
            "training.eval_strategy: the recipe's data has no validation split; set it to no, or give files"
        )
    # What is evaluated when training is over is read now: its faults are found before the first update.
    evaluated = [split for split in recipe.evaluation.splits if split not in splits]
    for split in (*splits, *evaluated):
        pairs[split], report = load_split(data, split)
        reports.append(report)
        _say(recipe, _told(report))
    with recipe.training.main_process_first(local=False, desc="tokenizer"):
        # Processes that wait for the first one find its tokenizer.
        known = resume_from is not None or not recipe.training.should_save
        tokenizer = _tokenizer(recipe, pairs["train"], from_run_folder=known)
    if resume_from is not None:
        require_same_tokenizer(tokenizer, resume_from)
    if data.packing is not None:
        splits += evaluated
    for split in splits:
        if data.packing is None:
            name = f"{split} tokens"
            encoded[split], report = encode_pairs(
                pairs[split], tokenizer, max_length=data.max_length, name=name, workers=data.workers
            )
            reports.append(report)
            _say(recipe, _told(report))
        else:
            pairs[split], encoded[split], report = _packed(recipe, split, pairs[split], tokenizer)
            packings.append(report)
            _say(recipe, report.summary())
    for split in recipe.evaluation.splits:
        _check_sources(recipe, split, pairs[split], tokenizer)
    del pairs["train"]  # what is read of a mapped file stays resident as long as it is mapped
    if recipe.training.should_save:
        write_json(folder / "corpus_report.json", [dataclasses.asdict(report) for report in reports])
        if packings:
            write_json(folder / "packing_report.json", [dataclasses.asdict(report) for report in packings])
    return PreparedCorpus(tokenizer, pairs, encoded)


def _told(report: CorpusReport) -> str:
    return f"{report.summary()} (from the cache)" if report.from_cache else report.summary()


def _packed(
    recipe: Recipe, split: str, sentences: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> tuple[datasets.Dataset, datasets.Dataset, PackingReport]:
    positions = build_config(recipe, tokenizer).max_position_embeddings
    packed = pack_split(recipe.data, split, sentences, tokenizer, positions=positions)
    return packed.pairs, packed.encoded, packed.report


def _check_sources(recipe: Recipe, split: str, pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses now what translating the split would refuse when training is over."""
    if recipe.evaluation.long_sources != "error":
        return  # told when it is done
    positions = build_config(recipe, tokenizer).max_position_embeddings
    encoder = SourceEncoder(tokenizer, positions, "error", MosesStep.from_tokenizer(tokenizer))
    encoder.encode(list(pairs["source"]), f"{split} split")


def _tokenizer(recipe: Recipe, pairs: datasets.Dataset, *, from_run_folder: bool) -> PreTrainedTokenizerBase:
    """The one the recipe names, the one in the run folder, or a newly trained one."""
    from transformers import AutoTokenizer

    wanted, folder, data = recipe.tokenizer, recipe.run_folder, recipe.data
    key, path = "tokenizer.path", wanted.path
    if recipe.initialize_from is not None:
        key, path = "initialize_from: the tokenizer of", recipe.initialize_from
    if path is not None:
        try:
            return AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, ImportError) as error:
            reason = one_line(error)
            raise UserError(f"{key} {path!r} cannot be loaded: {reason}") from error
    if from_run_folder:
        _say(recipe, f"tokenizer: the one in {folder}")
        return AutoTokenizer.from_pretrained(folder)
    tokenizer = train_tokenizer(
        pairs,
        vocab_size=wanted.vocab_size,
        lowercase=wanted.lowercase,
        moses=wanted.moses,
        source_language=data.source_language,
        target_language=data.target_language,
        max_length=data.max_length,
    )
    tokenizer.save_pretrained(folder)
    _say(recipe, f"tokenizer: {len(tokenizer):,} pieces")
    return tokenizer


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
    _say(recipe, f"weights: the mean of {', '.join(names)}")
    return names


def training_record(
    recipe: Recipe,
    trainer: ReLUFormerTrainer,
    output: TrainOutput,
    seconds: float,
    averaged: list[str],
    command: str | None = None,
) -> dict[str, Any]:
    """What was measured in training, with what makes it traceable.

    `target_tokens_per_update` and `target_tokens_per_second` are means over all logged updates, weighted by their
    number; `seconds` is the wall time of this process' training, evaluation included.
    """
    logs, means = [], {}
    update = 0
    for entry in trainer.state.log_history:
        if "target_tokens_per_update" in entry:
            logs.append((entry["step"] - update, entry))
            update = entry["step"]
    for name in ("target_tokens_per_update", "target_tokens_per_second"):
        weight = sum(updates for updates, _ in logs)
        means[name] = sum(updates * entry[name] for updates, entry in logs) / weight if weight else None
    return {
        **run_record(command, recipe.name, recipe.training.seed),
        "updates": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "seconds": seconds,
        **means,
        "training_loss": output.training_loss,
        "parameters": trainer.model.num_parameters(),
        "processes": recipe.training.world_size,
        "averaged_checkpoints": averaged,
    }


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


def evaluate_split(
    recipe: Recipe, split: str, run: Translator | Path, *, command: str | None = None, **options: Any
) -> dict[str, Any]:
    """Translates and scores a split, prints scores and samples, writes both into the run folder.

    Args:
        recipe: of the run.
        split: "train", "validation" or "test".
        run: the model in memory, or the run folder.
        options: of `Translator.from_pretrained`, with a run folder only.
    """
    pairs, report = load_split(recipe.data, split)
    _say(recipe, report.summary())
    translator = run if isinstance(run, Translator) else Translator.from_pretrained(run, **options)
    if recipe.data.packing is not None:
        pairs = pack_split(recipe.data, split, pairs, translator.tokenizer)
        _say(recipe, pairs.report.summary())
    scores = evaluate_run(
        translator,
        pairs,
        split=split,
        folder=recipe.run_folder,
        dataset_name=report.name,
        tokenized_lowercase_language=recipe.data.target_language,
        command=command,
        recipe_name=recipe.name,
        seed=recipe.training.seed,
    )
    rows = read_translations(recipe.run_folder / f"translations.{split}.tsv")
    if recipe.evaluation.samples:
        print_samples(*zip(*rows, strict=True), recipe.evaluation.samples)
    _say(recipe, f"{split}: {describe_scores(scores)}")
    return scores


def headline(recipe: Recipe, split: str, scores: dict[str, Any]) -> str:
    """The one score that the recipe is about: `exact match: 98.80 % on 1,000 held-out sentences (test)`."""
    score = SCORES[recipe.evaluation.headline]
    held_out = "training" if split == "train" else "held-out"
    count, unit = scores["sentences"], "sentences" if recipe.data.packing is None else "packed documents"
    if score.of_documents:
        count, unit = scores["documents"], "whole documents"
    return f"{score.label}: {score.value(scores)} on {count:,} {held_out} {unit} ({split})"


def _say(recipe: Recipe, line: str) -> None:
    """One line of progress, printed by the main process alone and clear of any progress bar."""
    if recipe.training.should_save:
        tqdm.write(line)
