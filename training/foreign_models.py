"""MarianMT, ViT, GPT-2 and Llama of Transformers → a ReLUFormer of the same kind with the same weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import (
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
    ViTForImageClassification,
)

from reluformer import ReLUFormerConfig, ReLUFormerDecoderConfig, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError, one_line
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig
from reluformer.training.loading import Model, changed_config, load_with_report, model_with_weights

Weights = dict[str, Tensor]

# Fields that mean the same in both configurations.
_MARIAN_FIELDS = (
    *("vocab_size", "decoder_vocab_size", "max_position_embeddings", "d_model", "scale_embedding", "init_std"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    *("activation_function", "dropout", "attention_dropout", "activation_dropout"),
    *("share_encoder_decoder_embeddings", "tie_word_embeddings", "use_cache"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
_DECODER_FIELDS = (
    *("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("tie_word_embeddings", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id"),
)
_VIT_FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "layer_norm_eps"),
    *("image_size", "patch_size", "num_channels", "qkv_bias", "id2label", "label2id", "problem_type"),
)
# Names of weights → ours. The first three of ViT as older versions of Transformers have them, too.
_VIT_NAMES = (
    (r"encoder\.layer\.", "layers."),
    (r"\.attention\.attention\.(query|key|value)\.", lambda found: f".self_attn.{found[1][0]}_proj."),
    (r"\.attention\.output\.dense\.", ".self_attn.out_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.attention\.o_proj\.", ".self_attn.out_proj."),
    (r"\.attention\.([qkv]_proj)\.", r".self_attn.\1."),
    (r"\.layernorm_before\.", ".input_layernorm."),
    (r"\.layernorm_after\.", ".post_attention_layernorm."),
    (r"\.patch_embeddings\.projection\.", ".patch_embeddings."),
    (r"^vit\.", "model."),
)
_GPT2_NAMES = (
    (r"^transformer\.wte\.", "model.embed_tokens."),
    (r"^transformer\.wpe\.", "model.embed_positions."),
    (r"^transformer\.ln_f\.", "model.norm."),
    (r"^transformer\.h\.", "model.layers."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.c_proj\.", ".self_attn.out_proj."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)


def marian_config(config: Any) -> ReLUFormerConfig:
    """The softmax ReLUFormer that is this Marian. Label smoothing is 0, as Marian's loss has none."""
    _require(config, is_decoder=False, is_encoder_decoder=True)
    return ReLUFormerConfig.from_preset("vanilla", label_smoothing=0.0, **_fields(config, _MARIAN_FIELDS))


def vit_config(config: Any) -> ReLUFormerVisionConfig:
    """The softmax model that is this ViT: with a class token, no norm of queries and keys, and ViT's initialisation."""
    start = {"pooling": "cls", "attention_qk_norm": False, "initialization": "normal"}
    return ReLUFormerVisionConfig.from_preset("softmax_vit", **start, **_fields(config, _VIT_FIELDS))


def gpt2_config(config: Any) -> ReLUFormerDecoderConfig:
    """The softmax decoder that is this GPT-2."""
    _require(config, add_cross_attention=False, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    return ReLUFormerDecoderConfig.from_preset(
        "gpt2",
        **_fields(config, _DECODER_FIELDS),
        intermediate_size=config.n_inner,
        hidden_act=config.activation_function,
        norm_eps=config.layer_norm_epsilon,
        init_std=config.initializer_range,
        embedding_dropout=config.embd_pdrop,
        dropout=config.resid_pdrop,
        attention_dropout=config.attn_pdrop,
    )


def llama_config(config: Any) -> ReLUFormerDecoderConfig:
    """The softmax decoder that is this Llama."""
    _require(config, sliding_window=None)  # which the library's caches keep to
    return ReLUFormerDecoderConfig.from_preset(
        "llama_relu",
        **_fields(config, (*_DECODER_FIELDS, "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act")),
        attention_activation="softmax",
        regularization_weight=0.0,
        norm_eps=config.rms_norm_eps,
        rope_parameters=copy.deepcopy(config.rope_parameters),
        init_std=config.initializer_range,
        attention_dropout=config.attention_dropout or 0.0,
        **dict.fromkeys(("query_key_bias", "value_bias", "output_bias"), config.attention_bias),
        ffn_bias=config.mlp_bias,
    )


def vit_weights(state_dict: Mapping[str, Tensor]) -> Weights:
    """The weights of a `ViTForImageClassification` under our names."""
    return {_renamed(name, _VIT_NAMES): tensor for name, tensor in state_dict.items()}


def gpt2_weights(state_dict: Mapping[str, Tensor]) -> Weights:
    """The weights of a `GPT2LMHeadModel` under our names; its projections are stored as (inputs, outputs)."""
    renamed = {}
    for name, tensor in state_dict.items():
        if re.search(r"\.(attn|mlp)\.c_\w+\.weight$", name):
            tensor = tensor.t().contiguous()
        name = _renamed(name, _GPT2_NAMES)
        if ".attn.c_attn." in name:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                renamed[name.replace(".attn.c_attn.", f".self_attn.{letter}_proj.")] = part.contiguous()
        else:
            renamed[name] = tensor
    return renamed


def llama_weights(state_dict: Mapping[str, Tensor]) -> Weights:
    """The weights of a `LlamaForCausalLM` under our names."""
    return {name.replace(".self_attn.o_proj.", ".self_attn.out_proj."): tensor for name, tensor in state_dict.items()}


@dataclass(frozen=True)
class ForeignModel:
    """A kind of model that can be converted: its name in messages, its class in Transformers, and both parts of it to ours."""

    name: str
    model_class: type[PreTrainedModel]
    config: Callable[[Any], AttentionConfig]
    weights: Callable[[Mapping[str, Tensor]], Weights]


# By the model type of the checkpoint.
FOREIGN_MODELS = {
    "marian": ForeignModel("Marian", MarianMTModel, marian_config, dict),  # whose names are ours
    "vit": ForeignModel("ViT", ViTForImageClassification, vit_config, vit_weights),
    "gpt2": ForeignModel("GPT-2", GPT2LMHeadModel, gpt2_config, gpt2_weights),
    "llama": ForeignModel("Llama", LlamaForCausalLM, llama_config, llama_weights),
}


def convert_model(foreign: PreTrainedModel, changes: Mapping[str, Any] | None = None) -> tuple[Model, list[str]]:
    """A Marian, ViT, GPT-2 or Llama in memory → a ReLUFormer in evaluation mode with its weights, dtype and settings of
    generation. The two may share memory.

    `changes` are fields of the configuration that are to differ, and `preset`; see `changed_config`.

    Returns:
        The model, and the names of its parameters that are new and untrained.

    Raises:
        UserError: a value that ReLUFormer refuses, such as trained positions of a Marian or a sliding window.
    """
    kind = FOREIGN_MODELS[foreign.config.model_type]
    config = converted_config(foreign.config)
    if changes:
        config = changed_config(config, changes)
    weights = kind.weights(foreign.state_dict())
    if isinstance(config, ReLUFormerDecoderConfig) and config.tie_word_embeddings:
        del weights["lm_head.weight"]
    model, new = model_with_weights(config, weights, dtype=foreign.dtype)
    if foreign.can_generate():
        model.generation_config = copy.deepcopy(foreign.generation_config)
    return model, new


def converted_config(config: PreTrainedConfig) -> AttentionConfig:
    """The configuration of the softmax ReLUFormer that is the model of this one; errors as of `convert_model`."""
    kind = FOREIGN_MODELS[config.model_type]
    try:
        return kind.config(config)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(f"this {kind.name} cannot become a ReLUFormer: {one_line(error)}") from error


def load_foreign(source: str | Path, config: PreTrainedConfig) -> tuple[PreTrainedModel, list[str]]:
    """A checkpoint in its own class, in the dtype it was saved in, and notes on what does not carry over.

    A ViT may lack its classifier; weights that the class has no use for, such as ViT's pooler, are left out by Transformers.

    Raises:
        UserError: weights that are pickled, damaged or incomplete.
    """
    kind = FOREIGN_MODELS[config.model_type]
    foreign, info = load_with_report(kind.model_class, source, config=config, dtype="auto")
    lacking = sorted(name for name in info["missing_keys"] if not name.startswith("classifier."))
    if lacking:
        raise UserError(
            f"{source}: the weights lack {len(lacking)} tensors of a {kind.name}, the first is {lacking[0]}"
        )
    return foreign, ["the checkpoint has no classifier: it is new and untrained"] * bool(info["missing_keys"])


def _fields(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names}


def _require(config: PreTrainedConfig, **ours: bool | None) -> None:
    for name, value in ours.items():
        if (given := getattr(config, name, value)) != value:
            raise ValueError(f"a ReLUFormer has no {name}={given}")


def _renamed(name: str, renamings: tuple[tuple[str, Any], ...]) -> str:
    for pattern, replacement in renamings:
        name = re.sub(pattern, replacement, name)
    return name
