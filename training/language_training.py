"""What is particular to language modelling in a run; the rest is `driver`'s."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM
from reluformer.configuration.language_recipe import LanguageRecipe
from reluformer.training.byte_tokenizer import train_byte_tokenizer
from reluformer.training.data.contexts import Contexts, collate_contexts, pack_contexts
from reluformer.training.data.package_sources import corpus_difference
from reluformer.training.data.text_sources import has_texts, split_documents
from reluformer.training.driver import FinishedRun, Task, model_to_evaluate, require_splits, splits_to_read
from reluformer.training.language_trainer import LanguageTrainer
from reluformer.training.run.model_building import TOKEN_FIELDS, check_tokenizer_of_checkpoint, token_fields
from reluformer.training.run.progress import say
from reluformer.training.run.recipe_models import (
    checkpoint_config,
    configured,
    model_to_train,
    refuse_fields,
    require_evaluation_attention,
    require_positions,
)
from reluformer.training.run.records import write_json
from reluformer.training.run.run_tokenizer import run_tokenizer
from reluformer.training.scoring.language_evaluation import evaluate_language_split


@dataclass(frozen=True)
class PreparedTexts:
    """The contexts of the splits that training reads, by name, and their tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    splits: dict[str, Contexts]


def build_language_config(
    recipe: LanguageRecipe, tokenizer: PreTrainedTokenizerBase | None = None
) -> ReLUFormerDecoderConfig:
    """The model's configuration; without a tokenizer a preliminary one, to find mistakes before texts are read.

    Raises:
        UserError: an unknown field or preset, a bad value, one that follows from the tokenizer, or contexts longer than the
            model's positions.
    """
    refuse_fields(recipe, TOKEN_FIELDS, "follows from the tokenizer; leave it out (see tokenizer.vocab_size)")
    checkpoint = checkpoint_config(recipe, ReLUFormerDecoderConfig)
    if checkpoint is not None:
        check_tokenizer_of_checkpoint(recipe.initialize_from, checkpoint, tokenizer)
        derived = {}
    elif tokenizer is None:
        derived = {"vocab_size": recipe.tokenizer.vocab_size}
    else:
        derived = token_fields(tokenizer)
    config = configured(ReLUFormerDecoderConfig, recipe.model, preset="gpt2", derived=derived, checkpoint=checkpoint)
    require_positions(recipe.data.max_length, config)
    require_evaluation_attention(recipe, config)
    return config


def _check(recipe: LanguageRecipe) -> None:
    """Finds what is wrong with the recipe before its texts are read."""
    build_language_config(recipe)
    require_splits(recipe, has_texts)


def _prepare(recipe: LanguageRecipe, resume_from: Path | None) -> PreparedTexts:
    """Reads every split that training or evaluation will read: faults are found before the first update."""
    data = recipe.data
    packages = None if data.corpus is None else data.corpus.packages
    if packages is not None and (difference := corpus_difference(packages)) is not None:
        say(recipe, f"note: {difference}")

    def train() -> PreTrainedTokenizerBase:
        texts = (document.text for document in split_documents(data, "train").read() if document.text)
        return train_byte_tokenizer(texts, vocab_size=recipe.tokenizer.vocab_size, max_length=data.max_length)

    tokenizer = run_tokenizer(recipe, train, resume_from)
    splits = {}
    for split in splits_to_read(recipe):
        splits[split] = pack_contexts(
            split_documents(data, split),
            tokenizer,
            max_length=data.max_length,
            name=split,
            evaluated=split != "train",
        )
        say(recipe, splits[split].report.summary())
    if recipe.training.should_save:
        reports = [asdict(contexts.report) for contexts in splits.values()]
        write_json(recipe.run_folder / "corpus_report.json", reports)
    return PreparedTexts(tokenizer, splits)


def _build(recipe: LanguageRecipe, data: PreparedTexts) -> PreTrainedModel:
    config = build_language_config(recipe, data.tokenizer)
    return model_to_train(recipe, config, ReLUFormerForCausalLM)


def _trainer(recipe: LanguageRecipe, data: PreparedTexts, model: PreTrainedModel) -> LanguageTrainer:
    validation = data.splits.get("validation") if recipe.training.eval_strategy != "no" else None
    return LanguageTrainer(
        model,
        recipe.training,
        data_collator=collate_contexts,
        train_dataset=data.splits["train"].rows,
        eval_dataset=None if validation is None else validation.rows,
        text_bytes=None if validation is None else validation.report.bytes,
        processing_class=data.tokenizer,
    )


def _evaluate(
    recipe: LanguageRecipe, trainer: LanguageTrainer, data: PreparedTexts, command: str | None
) -> FinishedRun:
    model, splits = model_to_evaluate(recipe, trainer, ReLUFormerForCausalLM), recipe.evaluation.splits
    scores = {split: evaluate_language_split(recipe, split, model, data.tokenizer, command=command) for split in splits}
    return FinishedRun(recipe, model, data.tokenizer, trainer.state.log_history, scores)


LANGUAGE_MODELING = Task(_check, _prepare, _build, _trainer, _evaluate)
