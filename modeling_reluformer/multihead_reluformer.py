"""Multi-head attention as every model of this package has it, and the norm of its output. Parameter names are Marian's."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache

from .attention_reluformer import AttentionContext
from .configuration_attention import CACHE_NAME, AttentionConfig


class GatedRMSNorm(nn.Module):
    """ReLA's norm, `RMSNorm(z) * g * sigmoid(w * z)` (arXiv 2104.07012), over the last dimension."""

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.gate = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        normed = nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight.to(hidden_states.dtype), self.eps)
        return normed * torch.sigmoid(self.gate * hidden_states)


def rotated(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864) of queries or keys (batch, heads, length, head_dim), halves paired as in Llama.

    cosines, sines: (batch or 1, length, head_dim).
    """
    first, second = states.chunk(2, dim=-1)
    return states * cosines.unsqueeze(1) + torch.cat([-second, first], dim=-1) * sines.unsqueeze(1)


class ReLUFormerAttention(nn.Module):
    """Multi-head attention with the activation of the configuration (Eq. 6); self-attention or cross-attention."""

    def __init__(
        self,
        config: AttentionConfig,
        heads: int,
        layer_idx: int | None = None,
        is_decoder: bool = False,
        is_causal: bool = False,
        qkv_bias: bool = True,
        *,
        value_bias: bool | None = None,
        output_bias: bool = True,
        key_heads: int | None = None,
        head_dim: int | None = None,
    ) -> None:
        """value_bias: default as qkv_bias. key_heads: default as heads, which must be a multiple (grouped keys). head_dim:
        default hidden_size / heads.
        """
        super().__init__()
        self.config = config
        # Reading a configuration in every step of decoding takes longer than the attention of one token.
        self.activation = config.attention_activation
        self.dropout = config.attention_dropout
        self.num_heads = heads
        features = config.hidden_size
        self.head_dim = features // heads if head_dim is None else head_dim
        self.scaling = self.head_dim**-0.5
        self.layer_idx = layer_idx
        self.is_decoder = is_decoder
        self.is_causal = is_causal

        merged, keys = heads * self.head_dim, (key_heads or heads) * self.head_dim
        if keys < merged:
            self.num_key_value_groups = merged // keys  # by this name, the library's own functions find it
        self.k_proj = nn.Linear(features, keys, bias=qkv_bias)
        self.v_proj = nn.Linear(features, keys, bias=qkv_bias if value_bias is None else value_bias)
        self.q_proj = nn.Linear(features, merged, bias=qkv_bias)
        self.out_proj = nn.Linear(merged, features, bias=output_bias)
        self.gate_proj = nn.Linear(features, merged) if config.attention_gate else None
        self.q_norm = nn.LayerNorm(self.head_dim) if config.attention_qk_norm else None
        self.k_norm = nn.LayerNorm(self.head_dim) if config.attention_qk_norm else None
        self.output_norm = None
        if config.attention_output_norm == "layer_norm":
            self.output_norm = nn.LayerNorm(merged)
        elif config.attention_output_norm == "gated_rms":
            self.output_norm = GatedRMSNorm(merged)
        # the logarithm of a learnable gamma is trained, so that gamma stays positive
        self.log_gamma = None
        if config.attention_gamma_learnable:
            self.log_gamma = nn.Parameter(torch.full((heads,), math.log(config.attention_gamma)))

    def forward(
        self,
        hidden_states: Tensor,
        context: AttentionContext,
        key_value_states: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...]]:
        """hidden_states (batch, queries, features) → the same, the weights if `eager`, S and T of the rows if figures are wanted.

        key_value_states: (sources, keys, features). Where `batch` is a multiple of `sources`, neighbouring rows share a source:
        they are computed as further queries of it, so that its keys are held and read once. The cache is among `kwargs`, by the
        name at which the library's checkpointing of layers removes it.
        """
        cache = kwargs.pop(CACHE_NAME, None)
        batch, queries, features = hidden_states.shape
        if key_value_states is not None and key_value_states.shape[0] != batch:
            hidden_states = hidden_states.reshape(key_value_states.shape[0], -1, features)
        query = self._split_heads(self.q_proj(hidden_states))
        if self.q_norm is not None:
            query = self.q_norm(query)
        if context.rotation is not None:
            query = rotated(query, *context.rotation)
        key, value = self._keys_and_values(hidden_states, key_value_states, cache, context.rotation)
        output, weights, *statistics = context.attend(
            self,
            query,
            key,
            value,
            context.mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scaling,
            visibility=context.visibility,
            row_scale=self.row_scale(context),
            statistics=context.statistics,
            **kwargs,
        )
        output = output.reshape(*hidden_states.shape[:-1], -1)
        if self.output_norm is not None:
            output = self.output_norm(output)
        if self.gate_proj is not None:
            output = output * self.gate_proj(hidden_states)
        output = self.out_proj(output).view(batch, queries, features)
        if weights is not None and weights.shape[0] != batch:
            weights = weights.unflatten(2, (-1, queries)).transpose(1, 2).flatten(0, 1)
        wanted = context.row_weight is not None and statistics and statistics[0] is not None
        return output, weights, tuple(statistics) if wanted else ()

    def row_scale(self, context: AttentionContext) -> Tensor | None:
        """r_i, (batch, 1 or heads, queries), see `AttentionContext`."""
        scale = context.row_scale
        if scale is None or self.log_gamma is None:
            return scale
        return scale * torch.exp(-self.log_gamma.to(scale.dtype)).view(1, -1, 1)

    def _keys_and_values(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None,
        cache: Cache | None,
        rotation: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        is_cross_attention = key_value_states is not None
        own = cache
        if isinstance(cache, EncoderDecoderCache):
            own = cache.cross_attention_cache if is_cross_attention else cache.self_attention_cache
            if is_cross_attention and cache.is_updated.get(self.layer_idx):
                layer = own.layers[self.layer_idx]
                return layer.keys, layer.values
        states = key_value_states if is_cross_attention else hidden_states
        key, value = self._split_heads(self.k_proj(states)), self._split_heads(self.v_proj(states))
        if self.k_norm is not None:
            key = self.k_norm(key)
        if rotation is not None:
            key = rotated(key, *rotation)
        if own is not None:
            key, value = own.update(key, value, self.layer_idx)
            if is_cross_attention and isinstance(cache, EncoderDecoderCache):
                cache.is_updated[self.layer_idx] = True
        return key, value

    def _split_heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:-1], -1, self.head_dim).transpose(1, 2)
