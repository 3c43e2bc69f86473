"""A recipe's model section and a tokenizer → the model that training starts with."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

import reluformer
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import Recipe
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig
from reluformer.training.run.recipe_models import (
    checkpoint_config,
    configured,
    model_to_train,
    refuse_fields,
    require_evaluation_attention,
    require_positions,
)

# Follow from the tokenizer, so a recipe cannot say otherwise.
TOKEN_FIELDS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
_FROM_THE_TOKENIZER = (*TOKEN_FIELDS, "decoder_vocab_size", "decoder_start_token_id")


def build_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None = None) -> reluformer.ReLUFormerConfig:
    """The model's configuration; without a tokenizer a preliminary one, to find mistakes before the corpus is read.

    Raises:
        UserError: an unknown field or preset, a bad value, or one that follows from the tokenizer.
    """
    refuse_fields(recipe, _FROM_THE_TOKENIZER, "follows from the tokenizer; leave it out (see tokenizer.vocab_size)")
    checkpoint = checkpoint_config(recipe, reluformer.ReLUFormerConfig)
    if checkpoint is not None:
        check_tokenizer_of_checkpoint(recipe.initialize_from, checkpoint, tokenizer)
    config = configured(
        reluformer.ReLUFormerConfig,
        recipe.model,
        preset="reluformer",
        derived=_token_fields(recipe, tokenizer) if checkpoint is None else {},
        checkpoint=checkpoint,
    )
    require_positions(recipe.data.max_length, config)
    require_evaluation_attention(recipe, config)
    return config


def _token_fields(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    if tokenizer is None:
        return {"vocab_size": recipe.tokenizer.vocab_size}
    if tokenizer.pad_token_id is None:
        raise UserError(
            "the tokenizer has no pad_token, with which the sentences of a batch become equally long; give it one"
        )
    # as in T5 and Marian, whose tokenizers begin no sentence
    start = tokenizer.pad_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return {**token_fields(tokenizer), "decoder_start_token_id": start}


def token_fields(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """`TOKEN_FIELDS` as they follow from a tokenizer."""
    return {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in TOKEN_FIELDS[1:]}}


def check_tokenizer_of_checkpoint(
    name: str, config: AttentionConfig, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Raises a `UserError` for a tokenizer beside the checkpoint `name` that is another model's; None is not known yet."""
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
    model = model_to_train(recipe, config, reluformer.ReLUFormerForConditionalGeneration)
    evaluation = recipe.evaluation
    # What `generate` does by default with the saved model is what the recipe evaluates.
    model.generation_config.num_beams = evaluation.num_beams
    model.generation_config.length_penalty = evaluation.length_penalty
    model.generation_config.max_new_tokens = recipe.data.max_length
    model.generation_config.max_length = None  # a checkpoint's; there is one limit, not two
    return model
