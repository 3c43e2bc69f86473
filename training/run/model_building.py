"""A recipe's model section and a tokenizer → the model that training starts with."""

from __future__ import annotations

import logging
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase, set_seed

import reluformer
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe import Recipe
from reluformer.configuration_attention import require_attention_implementation
from reluformer.training.run.initialization import changed_config, load_config, load_weights

logger = logging.getLogger(__name__)

# Follow from the tokenizer, so a recipe cannot say otherwise.
_FROM_THE_TOKENIZER = (
    "vocab_size",
    "decoder_vocab_size",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)


def build_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None = None) -> reluformer.ReLUFormerConfig:
    """The model's configuration; without a tokenizer a preliminary one, to find mistakes before the corpus is read.

    Raises:
        UserError: an unknown field or preset, a bad value, or one that follows from the tokenizer.
    """
    fields = dict(recipe.model)
    attn_implementation = fields.pop("attn_implementation", None)
    for name in _FROM_THE_TOKENIZER:
        if name in fields:
            raise UserError(f"model.{name}: follows from the tokenizer; leave it out (see tokenizer.vocab_size)")
    checkpoint = None
    if recipe.initialize_from is not None:
        try:
            checkpoint = load_config(recipe.initialize_from)
        except UserError as error:
            raise UserError(f"initialize_from: {error}") from error
        _check_tokenizer(recipe.initialize_from, checkpoint, tokenizer)
    try:
        if checkpoint is None:
            preset = fields.pop("preset", "reluformer")
            config = reluformer.ReLUFormerConfig.from_preset(preset, **fields, **_token_fields(recipe, tokenizer))
        else:
            config = changed_config(checkpoint, fields)
        # The model is never built with a pair that does not exist, so that is asked for here.
        if attn_implementation is not None:
            require_attention_implementation(config.attention_activation, attn_implementation)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(f"model: {one_line(error)}") from error
    if recipe.data.max_length > config.max_position_embeddings:
        raise UserError(
            f"data.max_length: {recipe.data.max_length} is more than model.max_position_embeddings "
            f"{config.max_position_embeddings}; lower the first or raise the second"
        )
    config._attn_implementation = attn_implementation
    return config


def _token_fields(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    if tokenizer is None:
        return {"vocab_size": recipe.tokenizer.vocab_size}
    return {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.bos_token_id,
    }


def _check_tokenizer(name: str, config: reluformer.ReLUFormerConfig, tokenizer: PreTrainedTokenizerBase | None) -> None:
    if tokenizer is None:
        return
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    if len(tokenizer) > config.vocab_size or tokenizer.pad_token_id != config.pad_token_id:
        raise UserError(
            f"initialize_from: {name}: its tokenizer has {len(tokenizer)} pieces and pad id {tokenizer.pad_token_id}, its model "
            f"{config.vocab_size} and {config.pad_token_id}; they do not belong together"
        )
    if tokenizer.eos_token_id not in ends:
        raise UserError(
            f"initialize_from: {name}: its tokenizer ends a sentence with id {tokenizer.eos_token_id}, its model with {ends}"
        )


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> reluformer.ReLUFormerForConditionalGeneration:
    """A new model with weights drawn from the recipe's seed, or with those of `initialize_from`.

    Raises:
        UserError: see [`build_config`].
    """
    config = build_config(recipe, tokenizer)
    set_seed(recipe.training.seed)
    if recipe.initialize_from is None:
        model = reluformer.ReLUFormerForConditionalGeneration(config)
    else:
        model, new = load_weights(recipe.initialize_from, config, dtype=torch.float32)
        if new:
            logger.warning("%d parameters are new and untrained, the first is %s", len(new), new[0])
    evaluation = recipe.evaluation
    # What `generate` does by default with the saved model is what the recipe evaluates.
    model.generation_config.num_beams = evaluation.num_beams
    model.generation_config.length_penalty = evaluation.length_penalty
    model.generation_config.max_new_tokens = recipe.data.max_length
    model.generation_config.max_length = None  # a checkpoint's; there is one limit, not two
    return model
