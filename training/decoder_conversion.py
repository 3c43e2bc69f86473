"""GPT-2 and Llama of Transformers → a decoder-only ReLUFormer with the same weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedConfig

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM
from reluformer.configuration.errors import UserError
from reluformer.training.foreign_weights import config_of_preset, load_foreign, require_all_weights
from reluformer.training.run.initialization import changed_config, model_with_weights

# Fields that mean the same in all these configurations.
_SAME_FIELDS = (
    "vocab_size",
    "max_position_embeddings",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "tie_word_embeddings",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
# Names of GPT-2's weights → ours; those of Llama differ in the last projection of attention alone.
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


def _require_ours(family: str, config: PreTrainedConfig, **ours: bool | None) -> None:
    for name, value in ours.items():
        if (given := getattr(config, name, value)) != value:
            raise UserError(f"this {family} cannot become a ReLUFormer, which has no {name}={given}")


def gpt2_config(config: GPT2Config) -> ReLUFormerDecoderConfig:
    """The softmax decoder that is this GPT-2.

    Raises:
        UserError: a GPT-2 with cross-attention or another scale of its scores, or a value that ReLUFormer refuses.
    """
    _require_ours(
        "GPT-2", config, add_cross_attention=False, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False
    )
    return config_of_preset(
        ReLUFormerDecoderConfig,
        "GPT-2",
        "gpt2",
        **{name: getattr(config, name) for name in _SAME_FIELDS},
        intermediate_size=config.n_inner,
        hidden_act=config.activation_function,
        norm_eps=config.layer_norm_epsilon,
        init_std=config.initializer_range,
        embedding_dropout=config.embd_pdrop,
        dropout=config.resid_pdrop,
        attention_dropout=config.attn_pdrop,
    )


def llama_config(config: LlamaConfig) -> ReLUFormerDecoderConfig:
    """The softmax decoder that is this Llama.

    Raises:
        UserError: a sliding window, which the library's caches keep to, or a value that ReLUFormer refuses.
    """
    _require_ours("Llama", config, sliding_window=None)
    return config_of_preset(
        ReLUFormerDecoderConfig,
        "Llama",
        "llama_relu",
        **{name: getattr(config, name) for name in _SAME_FIELDS},
        attention_activation="softmax",
        regularization_weight=0.0,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        hidden_act=config.hidden_act,
        norm_eps=config.rms_norm_eps,
        rope_parameters=copy.deepcopy(config.rope_parameters),
        init_std=config.initializer_range,
        attention_dropout=config.attention_dropout or 0.0,
        **dict.fromkeys(("query_key_bias", "value_bias", "output_bias"), config.attention_bias),
        ffn_bias=config.mlp_bias,
    )


def gpt2_weights(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a `GPT2LMHeadModel` under our names; its projections are stored as (inputs, outputs)."""
    renamed = {}
    for name, tensor in state_dict.items():
        if re.search(r"\.(attn|mlp)\.c_\w+\.weight$", name):
            tensor = tensor.t().contiguous()
        for pattern, replacement in _GPT2_NAMES:
            name = re.sub(pattern, replacement, name)
        if ".attn.c_attn." in name:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                renamed[name.replace(".attn.c_attn.", f".self_attn.{letter}_proj.")] = part.contiguous()
        else:
            renamed[name] = tensor
    return renamed


def llama_weights(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a `LlamaForCausalLM` under our names."""
    return {name.replace(".self_attn.o_proj.", ".self_attn.out_proj."): tensor for name, tensor in state_dict.items()}


@dataclass(frozen=True)
class _Source:
    name: str
    model_class: type
    config: Callable[[Any], ReLUFormerDecoderConfig]
    weights: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


# by the model type of the checkpoint
DECODER_SOURCES = {
    GPT2Config.model_type: _Source("GPT-2", GPT2LMHeadModel, gpt2_config, gpt2_weights),
    LlamaConfig.model_type: _Source("Llama", LlamaForCausalLM, llama_config, llama_weights),
}


def convert_decoder_model(
    foreign: GPT2LMHeadModel | LlamaForCausalLM, changes: Mapping[str, object] | None = None
) -> tuple[ReLUFormerForCausalLM, list[str]]:
    """A GPT-2 or Llama in memory → a ReLUFormer in evaluation mode with its weights, dtype and generation settings.

    The two may share memory.

    Args:
        foreign: any `GPT2LMHeadModel` or `LlamaForCausalLM`.
        changes: fields of the configuration that are to differ, and `preset`; see `changed_config`.

    Returns:
        The model, and the names of its parameters that are new and untrained.

    Raises:
        UserError: what `gpt2_config`, `llama_config` and `changed_config` raise.
    """
    source = DECODER_SOURCES[foreign.config.model_type]
    config = source.config(foreign.config)
    if changes:
        config = changed_config(config, changes)
    weights = source.weights(foreign.state_dict())
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    model, new = model_with_weights(config, weights, dtype=foreign.dtype)
    model.generation_config = copy.deepcopy(foreign.generation_config)
    return model, new


def load_decoder(source: str | Path, config: GPT2Config | LlamaConfig) -> GPT2LMHeadModel | LlamaForCausalLM:
    """The checkpoint in its own class, in the dtype it was saved in, with nothing drawn at random.

    Raises:
        UserError: weights that are pickled, damaged, or not those of such a language model.
    """
    kind = DECODER_SOURCES[config.model_type]
    foreign, info = load_foreign(kind.model_class, source, config)
    require_all_weights(source, info, kind.name)
    return foreign


__all__ = [
    "DECODER_SOURCES",
    "convert_decoder_model",
    "gpt2_config",
    "gpt2_weights",
    "llama_config",
    "llama_weights",
    "load_decoder",
]
