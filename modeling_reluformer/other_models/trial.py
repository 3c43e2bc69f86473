"""The trial of `use_relu_attention`: a forward pass without numbers, for what neither a class nor a config shows.

Whether a model adds a bias to its scores, or makes a mask of numbers, shows only in what it gives its attention.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.utils import logging

from . import ATTENTION_NAME
from .attention import RefusedByAttentionError

logger = logging.get_logger(__name__)

_TOKENS = 4
_SAMPLES = 4000  # of sound: a quarter of a second


def try_attention(model: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Refuses a model whose attention would refuse its first forward pass.

    The pass is that of a new model of the same class and config on torch's meta device, where tensors have a shape
    and no numbers: it takes no memory and hardly any time, and leaves the model as it is. It says nothing where it
    cannot be made: the class is built from more than a config, takes more than one input, or looks at the numbers of
    its tensors. Then the first pass with numbers refuses.

    Raises:
        RefusedByAttentionError: what the attention says.
    """
    try:
        with torch.random.fork_rng(devices=()), torch.device("meta"), init.no_init_weights(), torch.no_grad():
            trial = _copy_without_numbers(model, settings)
            trial(**_inputs_of(trial))
    except RefusedByAttentionError as error:
        raise RefusedByAttentionError(f"{type(model).__name__} cannot compute ReLU attention: {error}") from error
    except Exception as error:
        logger.info(
            f"{type(model).__name__} was not tried with ReLU attention before its first forward pass: {error!r}"
        )


def _copy_without_numbers(model: PreTrainedModel, settings: dict[str, Any]) -> PreTrainedModel:
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    for part in _with_parts(config):  # settings beside softmax attention would be warned of
        vars(part).pop(ATTENTION_NAME, None)
    trial = type(model)(config).eval()
    trial.set_attn_implementation(ATTENTION_NAME)
    for module in trial.modules():
        if isinstance(getattr(module, "config", None), PreTrainedConfig):
            setattr(module.config, ATTENTION_NAME, settings)
            module.config.pad_token_id = None  # else the library looks for padding among the numbers
    return trial


def _with_parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A config, and those of the parts of its model."""
    yield config
    for name in config.sub_configs:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            yield from _with_parts(part)


def _inputs_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """Inputs of one item, without numbers: texts, pictures, sound, or the spectrum of a sound as Whisper takes it."""
    config, name, tokens = model.config, model.main_input_name, torch.zeros(1, _TOKENS, dtype=torch.long)
    inputs = {name: tokens}
    if name == "pixel_values":
        size = config.image_size
        inputs[name] = torch.zeros(1, config.num_channels, *((size, size) if isinstance(size, int) else size))
    elif name == "input_values":
        inputs[name] = torch.zeros(1, _SAMPLES)
    elif name == "input_features":
        inputs[name] = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens
    return inputs
