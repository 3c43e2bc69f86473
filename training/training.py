"""One recipe → a trained model in its run folder, what `reluformer train` does; and what is particular to translation in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
from transformers import DataCollatorForSeq2Seq, PreTrainedModel

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.scores import SCORES
from reluformer.training.data.corpus import has_split
from reluformer.training.data.encoding import first_encoded_pairs
from reluformer.training.data.preparation import PreparedCorpus, prepare_corpus
from reluformer.training.driver import FinishedRun, Task, model_to_evaluate, require_splits, run_recipe
from reluformer.training.run.model_building import build_config, build_model
from reluformer.training.scoring.split_evaluation import evaluate_split
from reluformer.training.scoring.validation import ValidationTranslation
from reluformer.training.trainer import ReLUFormerTrainer
from reluformer.training.translation import Translator


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
        overwrite: empty the folder of an earlier run of this name, rather than refuse or resume.
        command: the command line, for the record; None takes the process' own.
        finish: what is still to be done with a run that did not diverge; called by the main process.

    Returns:
        The run folder.

    Raises:
        UserError: a mistake in the recipe or its data, found as early as possible; a disk that cannot be written to.
        TrainingStopped: SIGTERM has ended the training after a checkpoint, at which the same call goes on.
    """
    return run_recipe(recipe, _TRANSLATION, overwrite=overwrite, command=command, finish=finish)


def check(recipe: Recipe) -> None:
    """Raises the `UserError` with which `train` refuses a recipe before it looks at processes, data and the run folder."""
    recipe.check()
    _TRANSLATION.check(recipe)


def _check_before_reading(recipe: Recipe) -> None:
    """Finds what is wrong with the recipe before its corpus is read."""
    build_config(recipe)
    require_splits(recipe, has_split)


def _prepare(recipe: Recipe, resume_from: Path | None) -> PreparedCorpus:
    return prepare_corpus(recipe, resume_from)


def _build(recipe: Recipe, corpus: PreparedCorpus) -> PreTrainedModel:
    return build_model(recipe, corpus.tokenizer)


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
            language=recipe.data.target_language if recipe.data.text == "moses" else None,
            text=recipe.data.text,
            cased=SCORES[recipe.evaluation.headline].cased,
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


def _evaluate(recipe: Recipe, trainer: ReLUFormerTrainer, corpus: PreparedCorpus, command: str | None) -> FinishedRun:
    evaluation = recipe.evaluation
    model = model_to_evaluate(recipe, trainer, ReLUFormerForConditionalGeneration)
    translator = Translator(
        model,
        corpus.tokenizer,
        num_beams=evaluation.num_beams,
        length_penalty=evaluation.length_penalty,
        batch_tokens=evaluation.batch_tokens,
        long_sources=evaluation.long_sources,
    )
    scores = {split: evaluate_split(recipe, split, translator, command=command) for split in evaluation.splits}
    return FinishedRun(recipe, model, corpus.tokenizer, trainer.state.log_history, scores)


_TRANSLATION = Task(_check_before_reading, _prepare, _build, _trainer, _evaluate)


def headline(recipe: Recipe, split: str, scores: dict[str, Any]) -> str:
    """The one score that the recipe is about: `exact match: 98.80 % on 1,000 held-out sentences (test)`."""
    held_out = "training" if split == "train" else "held-out"
    score = SCORES[recipe.evaluation.headline]
    count, unit = scores["sentences"], "sentences" if recipe.data.packing is None else "packed documents"
    if score.of_documents:
        count, unit = scores["documents"], "whole documents"
    return f"{score.label}: {score.value(scores)} on {count:,} {held_out} {unit} ({split})"
