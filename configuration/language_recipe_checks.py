"""What a recipe of language modelling may not say although its types are right; see `recipe_checks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_checks import (
    OF_PREDICTIONS,
    check_chosen_documents,
    check_initialization,
    check_splits,
    only_origin,
)
from reluformer.configuration.splits import EVALUATED_SPLITS, SPLITS

if TYPE_CHECKING:
    from reluformer.configuration.language_recipe import LanguageRecipe, TextDataConfig, TextSource

# Arguments that the contexts or the model's own loss would make void: refused, never ignored.
REPLACED_ARGUMENTS = {
    "label_smoothing_factor": "set model.label_smoothing: smoothing in the trainer would drop the model's regulariser",
    "auto_find_batch_size": "set training.per_device_train_batch_size: a run keeps the batches it began with",
    "train_sampling_strategy": "contexts are reshuffled every epoch already",
    "average_tokens_across_devices": "the loss is a mean over the tokens of all processes, however they are dealt out",
    "dataloader_drop_last": "the last batch of an epoch holds the contexts that are left",
    **OF_PREDICTIONS,
}


def check_language_recipe(recipe: LanguageRecipe) -> None:
    """Raises `UserError` for values that cannot be trained."""
    _check_data(recipe.data)
    check_initialization(recipe)
    for name, value in {
        "tokenizer.vocab_size": recipe.tokenizer.vocab_size,
        "evaluation.batch_size": recipe.evaluation.batch_size,
    }.items():
        if value < 1:
            raise UserError(f"{name}: {value} must be at least 1")
    check_splits(recipe.evaluation.splits)
    recipe.check_settings(REPLACED_ARGUMENTS)


def _check_data(data: TextDataConfig) -> None:
    splits = any((data.train, data.validation, data.test))
    if only_origin({"corpus": data.corpus is not None, "train/validation/test": splits}) == "corpus":
        _check_shares(data)
    elif data.train is None:
        raise UserError("data: the texts of `train` are missing; give data.train.paths")
    elif data.split is not None:
        raise UserError(
            "data.split: would have no effect, since the splits are given themselves; leave it out, or give data.corpus"
        )
    if data.max_length < 2:
        raise UserError(f"data.max_length: a context of {data.max_length} predicts nothing; give at least 2")
    for name in ("corpus", *SPLITS):
        if (source := getattr(data, name)) is not None:
            _check_source(f"data.{name}", source)


def _check_shares(data: TextDataConfig) -> None:
    shares = {name: getattr(data.shares, name) for name in EVALUATED_SPLITS}
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise UserError(f"data.split.{name}: {share} must be a share of at least 0 and below 1, such as 0.02")
    if sum(shares.values()) >= 1:
        raise UserError(f"data.split: {shares} leaves nothing to train on; give shares whose sum is below 1")


def _check_source(key: str, source: TextSource) -> None:
    origins = {name: getattr(source, name) is not None for name in ("paths", "packages", "dataset")}
    given = only_origin(origins, key)
    if source.paths is not None and not source.all_paths():
        raise UserError(f"{key}.paths: names no file; give at least one")
    if source.packages is not None and not source.packages.names:
        raise UserError(f"{key}.packages.names: names no package; give at least one")
    of_paths = {"pattern": source.pattern != "*", "documents": source.documents is not None}
    for name, is_given in of_paths.items():
        if is_given and source.paths is None:
            raise UserError(f"{key}.{name}: would have no effect on {given}; leave it out")
    if source.documents is not None and len(source.all_paths()) != 1:
        raise UserError(f"{key}.documents: names the documents of one file, {key}.paths are several; give one")
    check_chosen_documents(key, source.documents, source.only)
