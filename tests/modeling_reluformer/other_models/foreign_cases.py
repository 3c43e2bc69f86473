"""Tiny models of other families, and an independent computation of ReLU attention to compare them with.

The oracle is the family's own `eager` path, its masks included, with the softmax function replaced by
`oracle_attention`.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ...conftest import VOCABULARY

SETTINGS = {"gamma": 0.6}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
STABLE = {"vocab_size": VOCABULARY, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert_config(**fields: Any) -> transformers.BertConfig:
    return transformers.BertConfig(**{**SMALL, **STABLE, **NO_DROPOUT, "max_position_embeddings": 40, **fields})


def modernbert_config(**fields: Any) -> transformers.ModernBertConfig:
    """Layer 0 sees everything, layer 1 a window of 2 tokens on each side."""
    special = {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "global_attn_every_n_layers": 2}
    return transformers.ModernBertConfig(**{**SMALL, **STABLE, **special, "max_position_embeddings": 40, **fields})


def vit_config(**fields: Any) -> transformers.ViTConfig:
    return transformers.ViTConfig(
        **{**SMALL, **NO_DROPOUT, "initializer_range": 0.3, "image_size": 8, "patch_size": 4, **fields}
    )


def llama_config(**fields: Any) -> transformers.LlamaConfig:
    """Two query heads share a head of keys."""
    return transformers.LlamaConfig(
        **{**SMALL, **STABLE, "num_key_value_heads": 2, "max_position_embeddings": 40, **fields}
    )


def mistral_config(**fields: Any) -> transformers.MistralConfig:
    """As Llama, with a sliding window of 4 tokens."""
    shape = {"num_key_value_heads": 2, "max_position_embeddings": 40, "sliding_window": 4, "head_dim": 4}
    return transformers.MistralConfig(**{**SMALL, **STABLE, **shape, **fields})


def gemma3_config(**fields: Any) -> transformers.Gemma3TextConfig:
    """As Mistral in layer 0; layer 1 sees everything."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 4}
    shape = {"num_key_value_heads": 2, "max_position_embeddings": 40, "sliding_window": 4, "head_dim": 4}
    return transformers.Gemma3TextConfig(**{**SMALL, **STABLE, **kinds, **shape, **fields})


def marian_config(**fields: Any) -> transformers.MarianConfig:
    stacks = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in {"layers": 2, "attention_heads": 2, "ffn_dim": 24}.items()
    }
    special = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    rates = {"dropout": 0.0, "init_std": 0.6, "max_position_embeddings": 40}
    return transformers.MarianConfig(
        **{"vocab_size": VOCABULARY, "d_model": 16, **stacks, **special, **rates, **fields}
    )


CONFIGS = {
    "bert": (bert_config, transformers.AutoModel),
    "modernbert": (modernbert_config, transformers.AutoModel),
    "vit": (vit_config, transformers.AutoModel),
    "llama": (llama_config, transformers.AutoModelForCausalLM),
    "mistral": (mistral_config, transformers.AutoModelForCausalLM),
    "gemma3": (gemma3_config, transformers.AutoModelForCausalLM),
    "marian": (marian_config, transformers.AutoModelForSeq2SeqLM),
}


def build(family: str, implementation: str = "reluformer", **fields: Any) -> transformers.PreTrainedModel:
    """A model with random weights and biases, the same for the same fields, in evaluation mode.

    In float64: these random weights make rounding grow from layer to layer.
    """
    make_config, auto_class = CONFIGS[family]
    config: transformers.PreTrainedConfig = make_config(**{"reluformer": dict(SETTINGS), **fields})
    torch.manual_seed(0)
    model = auto_class.from_config(config, attn_implementation=implementation).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if family == "marian":  # so that what is written differs with what is read
            model.final_logits_bias.normal_()
            for name, parameter in model.named_parameters():
                parameter.mul_(2 if "encoder_attn." in name else 1)
    if model.can_generate():
        model.generation_config = copy.deepcopy(model.generation_config)
        model.generation_config.eos_token_id = None  # all rows as long as asked for
    return model


def oracle(family: str, monkeypatch: Any, **fields: Any) -> transformers.PreTrainedModel:
    """The same model with `oracle_attention` in the place of the family's eager softmax attention."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    monkeypatch.setattr(module, "eager_attention_forward", oracle_attention)
    return build(family, "eager", **fields)


def oracle_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """ReLU(q·k/sqrt(d)) / (gamma sqrt(n/2)) as the formula stands, hidden keys zeroed; other settings by the same
    letter."""
    settings = {"activation": "relu", "scaling": "variance", "gamma": 8.0, "alpha": 1.0, **module.config.reluformer}
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * (scaling or query.shape[-1] ** -0.5)
    visible = torch.ones_like(scores) if attention_mask is None else (attention_mask == 0).expand_as(scores).double()
    count = visible.sum(-1, keepdim=True).clamp(min=1)
    row = {
        "variance": 1 / (settings["gamma"] * (count / 2).sqrt()),
        "length": count ** -settings["alpha"],
        "none": torch.ones_like(count),
    }[settings["scaling"]]
    activation = {"relu": torch.relu, "gelu": nn.functional.gelu, "sigmoid": torch.sigmoid}[settings["activation"]]
    weights = activation(scores) * visible * row
    return torch.einsum("bhij,bhjd->bihd", weights, value).contiguous(), weights


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Token ids without the special ones."""
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padding(side: str, batch: int = 3, length: int = 7) -> Tensor | None:
    """Masks of rows of which the first is whole and each next one two tokens shorter."""
    if side == "none":
        return None
    mask = torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        hidden = slice(0, 2 * row) if side == "left" else slice(length - 2 * row, length)
        mask[row, hidden] = 0
    return mask


def real(output: Tensor, mask: Tensor | None) -> Tensor:
    """The rows of real tokens: nobody reads the others, and their contents may differ."""
    return output if mask is None else output[mask.bool()]
