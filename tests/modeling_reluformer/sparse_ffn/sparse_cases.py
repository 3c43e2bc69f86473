"""Small models with ReLU in their feed-forward networks, ours and others', and what they decode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    LlamaForCausalLM,
    MarianMTModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from ...conftest import TINY, random_tokens, tiny_model
from ..cases import decoder_model
from ..other_models.foreign_cases import STABLE, llama_config, marian_config


def opt_model(**fields) -> OPTForCausalLM:
    sizes = {"hidden_size": 16, "ffn_dim": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "init_std": 0.3}
    return OPTForCausalLM(OPTConfig(**{**sizes, "vocab_size": 40, "word_embed_proj_dim": 16, **SPECIAL, **fields}))


def t5_model(**fields) -> T5ForConditionalGeneration:
    sizes = {"d_model": 16, "d_ff": 40, "d_kv": 4, "num_layers": 2, "num_heads": 4, "initializer_factor": 2.0}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    return T5ForConditionalGeneration(T5Config(**{**sizes, "vocab_size": 40, **special, **fields}))


SPECIAL = {name: STABLE[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "opt": opt_model,
    "t5": lambda: t5_model(feed_forward_proj="relu"),
    "t5-gated": lambda: t5_model(feed_forward_proj="gated-relu"),
    "llama": lambda: LlamaForCausalLM(llama_config(hidden_act="relu", intermediate_size=40, mlp_bias=True)),
    "llama-relu2": lambda: LlamaForCausalLM(llama_config(hidden_act="relu2")),
    "marian": lambda: MarianMTModel(marian_config(activation_function="relu")),
    "translation": lambda: tiny_model(decoder_ffn_dim=TINY["decoder_ffn_dim"] + 9),
    "decoder": lambda: decoder_model(hidden_act="relu"),
    "decoder-glu": lambda: decoder_model(preset="llama_relu"),
    "decoder-dglu": lambda: decoder_model(preset="llama_relu", ffn_type="dglu", ffn_bias=True),
}


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """One of `MODELS` with new weights, in evaluation mode; it decodes to the last token that is asked for."""
    torch.manual_seed(seed)
    model = MODELS[name]().eval()
    model.generation_config.eos_token_id = None
    return model


def decoded(model: PreTrainedModel, rows: int = 1, **options) -> torch.Tensor:
    """Greedy tokens (rows, length) behind a prompt, or for a source, of 12 tokens."""
    return model.generate(random_tokens(rows, 12, seed=1), max_new_tokens=8, do_sample=False, **options)
