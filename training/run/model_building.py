"""A recipe's sections `model`, `tokenizer` and `initialize_from` → the tokenizer and the model that training starts
with."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import datasets
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase, Trainer, get_scheduler, set_seed

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe import Recipe
from reluformer.modeling_reluformer.configuration_reluformer import require_attention_implementation
from reluformer.records.progress import say
from reluformer.training.data.tokenization import train_tokenizer
from reluformer.translating.loading import (
    changed_config,
    load_tokenizer,
    load_translation_config,
    load_weights,
    require_embeddings,
)
from reluformer.translating.sentences import DOCUMENT, SENTENCE

logger = logging.getLogger(__name__)

# Follow from the tokenizer, so a recipe cannot say otherwise.
_TOKEN_FIELDS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
_FROM_THE_TOKENIZER = (*_TOKEN_FIELDS, "decoder_vocab_size", "decoder_start_token_id")


@contextlib.contextmanager
def keyed(name: str) -> Iterator[None]:
    """Puts the key of a recipe before the message of an error that its value makes a library raise."""
    try:
        yield
    # RuntimeError: sizes for which there is no memory
    except (ValueError, TypeError, ArithmeticError, ImportError, RuntimeError, StrictDataclassError) as error:
        raise UserError(f"{name}: {one_line(error)}") from error


def build_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None = None) -> ReLUFormerConfig:
    """The model's configuration; without a tokenizer a preliminary one, to find mistakes before the corpus is read.

    Raises:
        UserError: an unknown field or preset, a bad value, or one that the tokenizer or the weights of
            `initialize_from` decide.
    """
    for name in _FROM_THE_TOKENIZER:
        if name in recipe.model:
            raise UserError(f"model.{name}: follows from the tokenizer; leave it out (see tokenizer.vocab_size)")
    fields = dict(recipe.model)
    attn_implementation = fields.pop("attn_implementation", None)
    if recipe.initialize_from is not None:
        with keyed("initialize_from"):
            checkpoint = load_translation_config(recipe.initialize_from)
            if tokenizer is not None:
                require_embeddings(recipe.initialize_from, tokenizer, checkpoint.vocab_size)
        with keyed("model"):
            config = changed_config(checkpoint, fields)
    else:
        derived = _token_fields(tokenizer) if tokenizer else {"vocab_size": recipe.tokenizer.vocab_size}
        with keyed("model"):
            config = ReLUFormerConfig.from_preset(fields.pop("preset", "reluformer"), **fields, **derived)
    # The model is never built with a pair that does not exist, so that is asked for here.
    if attn_implementation is not None:
        with keyed("model.attn_implementation"):
            require_attention_implementation(config.attention_activation, attn_implementation)
    if recipe.data.max_length > config.max_position_embeddings:
        raise UserError(
            f"data.max_length: {recipe.data.max_length} is more than model.max_position_embeddings "
            f"{config.max_position_embeddings}; lower the first or raise the second"
        )
    config._attn_implementation = attn_implementation
    return config


def require_trainable(recipe: Recipe) -> None:
    """Makes model, optimizer and schedule of a recipe in small, so that the libraries refuse now what they cannot make,
    rather than when the corpus is read."""
    training, config = recipe.training, build_config(recipe)
    with keyed("model"), torch.device("meta"):  # no memory but for the table of positions
        model = ReLUFormerForConditionalGeneration(config)
    named = f" with optim_args {training.optim_args!r}" if training.optim_args else ""
    with keyed(f"training.optim {getattr(training.optim, 'value', training.optim)}{named}"):
        kind, options = Trainer.get_optimizer_cls_and_kwargs(training, model)
        if not isinstance(kind, type) or {"params", "model", "optimizer_dict"} & options.keys():
            return  # a kind that is made for the layers of the trained model
        optimizer = kind([torch.zeros(1, requires_grad=True)], **options)
    updates = training.max_steps if training.max_steps > 0 else 1_000
    named = f" with lr_scheduler_kwargs {training.lr_scheduler_kwargs}" if training.lr_scheduler_kwargs else ""
    with keyed(f"training.lr_scheduler_type {training.lr_scheduler_type.value}{named}"):
        schedule = get_scheduler(
            training.lr_scheduler_type,
            optimizer,
            num_warmup_steps=training.get_warmup_steps(updates),
            num_training_steps=updates,
            scheduler_specific_kwargs=training.lr_scheduler_kwargs,
        )
        for rate in getattr(schedule, "lr_lambdas", ()):
            rate(updates)  # its formula after the warm-up


def build_model(recipe: Recipe, config: ReLUFormerConfig) -> ReLUFormerForConditionalGeneration:
    """A new model of a [`build_config`], with weights drawn from the recipe's seed or with those of `initialize_from`.

    Raises:
        UserError: weights that do not fit the configuration, or a size for which there is no memory.
    """
    set_seed(recipe.training.seed)
    if recipe.initialize_from is None:
        with keyed("model"):
            model = ReLUFormerForConditionalGeneration(config)
    else:
        model, new = load_weights(recipe.initialize_from, config, dtype=torch.float32)
        if new:
            logger.warning("%d parameters are new and untrained, the first is %s", len(new), new[0])
    # What `generate` does by default with the saved model is what the recipe evaluates.
    settings = model.generation_config
    settings.num_beams, settings.length_penalty = recipe.evaluation.num_beams, recipe.evaluation.length_penalty
    settings.max_new_tokens = recipe.data.max_length
    settings.max_length = None  # a checkpoint's may have this limit
    return model


def run_tokenizer(recipe: Recipe, pairs: datasets.Dataset, resume_from: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer of a run, the same on every process: that of `resume_from`, that which the recipe names, or a new
    one of the training `pairs`, which is written into the run folder.

    It records the languages of the recipe, and whether it is trained on sentences or documents: `Translator` reads
    that.
    """
    data, tokenizer = recipe.data, _tokenizer(recipe, pairs, resume_from)
    tokenizer.init_kwargs |= {
        "source_language": data.source_language,
        "target_language": data.target_language,
        "text_unit": SENTENCE if data.packing is None else DOCUMENT,
    }
    return tokenizer


def _tokenizer(recipe: Recipe, pairs: datasets.Dataset, resume_from: Path | None) -> PreTrainedTokenizerBase:
    with recipe.training.main_process_first(local=False, desc="tokenizer"):
        if resume_from is not None:
            return load_tokenizer(resume_from)
        for key, path in (("initialize_from", recipe.initialize_from), ("tokenizer.path", recipe.tokenizer.path)):
            if path is not None:
                with keyed(key):
                    return load_tokenizer(path)
        if not recipe.training.should_save:  # the main process has trained it
            return load_tokenizer(recipe.run_folder)
        wanted, data = recipe.tokenizer, recipe.data
        tokenizer = train_tokenizer(
            pairs,
            vocab_size=wanted.vocab_size,
            lowercase=wanted.lowercase,
            moses=wanted.moses,
            source_language=data.source_language,
            target_language=data.target_language,
            max_length=data.max_length,
        )
        tokenizer.save_pretrained(recipe.run_folder)
    say(f"tokenizer: {len(tokenizer):,} pieces")
    return tokenizer


def _token_fields(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    if tokenizer.pad_token_id is None:
        raise UserError(
            "the tokenizer has no pad_token, which makes the sentences of a batch equally long; give it one"
        )
    # as in T5 and Marian, whose tokenizers begin no sentence
    start = tokenizer.pad_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    fields = {name: getattr(tokenizer, name) for name in _TOKEN_FIELDS[1:]}
    return {"vocab_size": len(tokenizer), **fields, "decoder_start_token_id": start}
