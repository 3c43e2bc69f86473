"""The weights of an existing model under a changed configuration: another attention, other dropout, the same shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
    ReLUFormerForImageClassification,
    ReLUFormerVisionConfig,
)
from reluformer.configuration.errors import UserError, one_line
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig
from reluformer.training.loading import load_with_report

Model = ReLUFormerForConditionalGeneration | ReLUFormerForCausalLM | ReLUFormerForImageClassification
_MODELS = {
    ReLUFormerConfig: ReLUFormerForConditionalGeneration,
    ReLUFormerDecoderConfig: ReLUFormerForCausalLM,
    ReLUFormerVisionConfig: ReLUFormerForImageClassification,
}
# The weights were made for these: what they say cannot change without them.
_FIXED_BY_THE_WEIGHTS = (
    *("vocab_size", "decoder_vocab_size", "d_model", "hidden_size", "intermediate_size", "head_dim", "num_labels"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "ffn_type", "ffn_bias"),
    *("share_encoder_decoder_embeddings", "tie_word_embeddings", "position_embedding", "normalization"),
    *("final_norm", "norm_type", "query_key_bias", "value_bias", "output_bias", "qkv_bias"),
    *("image_size", "patch_size", "num_channels", "pooling", "pooler_act"),
)


def changed_config(config: AttentionConfig, changes: Mapping[str, Any]) -> AttentionConfig:
    """`config` with other values in some fields.

    A `preset` among the changes replaces the attention, regulariser included, but for a gate and a learnable γ; an
    `attention_activation` alone takes the scaling and the regularisation that are its defaults, unless these are given too.

    Args:
        config: of an existing model.
        changes: fields of the configuration, and `preset`.

    Raises:
        UserError: an unknown field or preset, a bad value, or a size that the existing weights have decided.
    """
    changes, kind = dict(changes), type(config)
    preset = changes.pop("preset", None)
    for name in _FIXED_BY_THE_WEIGHTS:
        if name in changes and hasattr(config, name) and changes[name] != getattr(config, name):
            raise UserError(f"{name}: {changes[name]!r} does not fit the weights, made for {getattr(config, name)!r}")
    kept = {field.name: getattr(config, field.name) for field in dataclasses.fields(kind)}
    follows = set()
    if preset is not None:
        fields = set().union(*kind.presets.values())
        follows = {name for name in fields if name.startswith("attention_") or name == "regularization_weight"}
    elif changes.get("attention_activation", config.attention_activation) != config.attention_activation:
        follows = {"attention_scaling", "regularization_weight"}
    kept = {name: value for name, value in kept.items() if name not in follows}
    if preset is None:
        kept |= dict.fromkeys(follows)  # None: the default of the activation, not that of a preset
    try:
        # without a preset every field of it is kept or changed, so that the name does not matter
        return kind.from_preset(preset or next(iter(kind.presets)), **{**kept, **changes})
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(one_line(error)) from error


def model_with_weights(
    config: AttentionConfig, state_dict: Mapping[str, Tensor], *, dtype: torch.dtype
) -> tuple[Model, list[str]]:
    """A model in evaluation mode with the weights of another.

    Returns:
        The model, and the names of its parameters that the weights lack and that were drawn anew: those of norms and
        gates of attention and FFN that the other model did not have.

    Raises:
        UserError: weights left over, lacking or of another shape.
    """
    model, info = _MODELS[type(config)].from_pretrained(
        None,
        config=config,
        state_dict=dict(state_dict),
        dtype=dtype,
        ignore_mismatched_sizes=True,  # reported below
        output_loading_info=True,
    )
    return model, _new_parameters(info)


def load_weights(path_or_hub_id: str | Path, config: AttentionConfig, *, dtype: torch.dtype) -> tuple[Model, list[str]]:
    """The model of a ReLUFormer checkpoint under another configuration; see `model_with_weights`.

    The checkpoint's generation settings come with it.
    """
    model, info = load_with_report(
        _MODELS[type(config)], path_or_hub_id, config=config, dtype=dtype, ignore_mismatched_sizes=True
    )
    return model, _new_parameters(info)


# Modules that a configuration adds to what Marian, ViT, GPT-2, Llama and the plain ReLUFormer have. A gated FFN has a gate of its
# own, which is not optional.
_OPTIONAL_MODULES = ("log_gamma", "gate_proj", "q_norm", "k_norm", "output_norm", "ffn_layer_norm")


def _new_parameters(info: Mapping[str, Any]) -> list[str]:
    """Names of the parameters that the weights may lack; `info` is the report of `from_pretrained`."""
    shapes = {
        name: f": it has shape {list(saved)}, not {list(wanted)}" for name, saved, wanted in info["mismatched_keys"]
    }
    problems = {
        "the weights lack": [name for name in info["missing_keys"] if not _is_optional(name)],
        "the configuration has no place for": info["unexpected_keys"],
        "the shapes differ of": shapes,
    }
    for what, names in problems.items():
        if names:
            first = min(names)
            raise UserError(
                f"the weights do not fit the configuration: {what} {len(names)} tensors, first {first}{shapes.get(first, '')}"
            )
    return sorted(info["missing_keys"])


def _is_optional(name: str) -> bool:
    parts = name.split(".")
    return "mlp" not in parts and not set(_OPTIONAL_MODULES).isdisjoint(parts)
