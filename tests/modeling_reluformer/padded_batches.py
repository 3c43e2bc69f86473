"""Padding for batches of tests, and the ways to compute a model here."""

import torch

from reluformer.modeling_reluformer.configuration_reluformer import valid_attention_implementations

from ..conftest import tiny_config

PADDING = 0


def implementations(fields: dict) -> list[str]:
    names = valid_attention_implementations(tiny_config(**fields).attention_activation)
    return [name for name in names if not name.startswith("flash")]


def padded(tokens: torch.Tensor, count: int, side: str, value: int = PADDING) -> torch.Tensor:
    padding = tokens.new_full((tokens.shape[0], count), value)
    return torch.cat([padding, tokens] if side == "left" else [tokens, padding], dim=1)


def mask_of(tokens: torch.Tensor, count: int, side: str) -> torch.Tensor:
    return padded(torch.ones_like(tokens), count, side, 0)
