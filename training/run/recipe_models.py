"""What a recipe's model section means in every task: fields over a preset or over a checkpoint, new weights or its weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel, set_seed

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe import Recipe
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig, require_attention_implementation
from reluformer.training.run.initialization import changed_config, load_config, load_weights

logger = logging.getLogger(__name__)


def refuse_fields(recipe: Recipe, names: Sequence[str], why: str) -> None:
    """Raises a `UserError` for fields of the model that a recipe cannot say; `why` follows after the name."""
    for name in names:
        if name in recipe.model:
            raise UserError(f"model.{name}: {why}")


def checkpoint_config(recipe: Recipe, kind: type[AttentionConfig]) -> AttentionConfig | None:
    """The configuration of `initialize_from`, None where the recipe starts anew.

    Raises:
        UserError: no such checkpoint, or one of another kind.
    """
    if recipe.initialize_from is None:
        return None
    try:
        return load_config(recipe.initialize_from, kind)
    except UserError as error:
        raise UserError(f"initialize_from: {error}") from error


def configured(
    kind: type[AttentionConfig],
    fields: Mapping[str, Any],
    *,
    preset: str,
    derived: Mapping[str, Any],
    checkpoint: AttentionConfig | None,
) -> AttentionConfig:
    """The model's configuration, with the implementation of attention that the recipe names.

    Args:
        kind: of the model.
        fields: the recipe's section: fields, `preset`, `attn_implementation`.
        preset: where `fields` names none.
        derived: fields that follow from the data.
        checkpoint: what the fields are laid over; None: the preset.

    Raises:
        UserError: an unknown field or preset, a bad value, or what the checkpoint's weights do not allow.
    """
    fields = {**fields, **derived}
    attn_implementation = fields.pop("attn_implementation", None)
    try:
        if checkpoint is None:
            config = kind.from_preset(fields.pop("preset", preset), **fields)
        else:
            config = changed_config(checkpoint, fields)
        # The model is never built with a pair that does not exist, so that is asked for here.
        if attn_implementation is not None:
            require_attention_implementation(config.attention_activation, attn_implementation)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(f"model: {one_line(error)}") from error
    config._attn_implementation = attn_implementation
    return config


def require_evaluation_attention(recipe: Recipe, config: AttentionConfig) -> None:
    """Raises a `UserError` where the evaluation asks for an implementation that cannot compute the model's activation."""
    if recipe.evaluation.attn_implementation is not None:
        try:
            require_attention_implementation(config.attention_activation, recipe.evaluation.attn_implementation)
        except ValueError as error:
            raise UserError(f"evaluation.attn_implementation: {error}") from error


def require_positions(max_length: int, config: AttentionConfig) -> None:
    """Raises a `UserError` for texts longer than the model has positions for."""
    if max_length > config.max_position_embeddings:
        raise UserError(
            f"data.max_length: {max_length} is more than model.max_position_embeddings "
            f"{config.max_position_embeddings}; lower the first or raise the second"
        )


def model_to_train(recipe: Recipe, config: AttentionConfig, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    """A new model with weights drawn from the recipe's seed, or with those of `initialize_from`."""
    set_seed(recipe.training.seed)
    if recipe.initialize_from is None:
        return model_class(config)
    model, new = load_weights(recipe.initialize_from, config, dtype=torch.float32)
    if new:
        logger.warning("%d parameters are new and untrained, the first is %s", len(new), new[0])
    return model
