"""Layers of ReLUFormer: positions, multi-head attention, encoder and decoder layer (post-LN, Vaswani et al.).

Parameter names are Marian's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention_reluformer import ALL_ATTENTION_FUNCTIONS, AttentionContext, eager_attention_forward
from .configuration_reluformer import ReLUFormerConfig
from .regularization_reluformer import module_figures


class SinusoidalPositions(nn.Module):
    """Table of sinusoidal positions, sines in the first half of the features and cosines in the second."""

    def __init__(self, positions: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.empty(positions, features), persistent=False)
        self.weight.copy_(self.table())

    def table(self) -> Tensor:
        """The table in float64, computed anew. A buffer that is not saved has lost its values after loading."""
        positions, features = self.weight.shape
        rates = 10000.0 ** (-torch.arange(0, features, 2, dtype=torch.float64, device="cpu") / features)
        angles = torch.arange(positions, dtype=torch.float64, device="cpu").unsqueeze(1) * rates
        return torch.cat([angles.sin(), angles.cos()[:, : features // 2]], dim=1)

    def forward(self, position_ids: Tensor) -> Tensor:
        """(batch or 1, length) → (batch or 1, length, features)."""
        return nn.functional.embedding(position_ids, self.weight)


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


class ReLUFormerAttention(nn.Module):
    """Multi-head attention with the activation of the configuration (Eq. 6); self-attention or cross-attention."""

    def __init__(
        self,
        config: ReLUFormerConfig,
        heads: int,
        layer_idx: int | None = None,
        is_decoder: bool = False,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        # Reading a configuration in every step of decoding takes longer than the attention of one token.
        self.activation = config.attention_activation
        self.dropout = config.attention_dropout
        self.length_scaled = config.attention_scaling == "length"
        self.gamma = config.attention_gamma
        self.entropy_margin = config.entropy_margin
        self.num_heads = heads
        self.head_dim = config.d_model // heads
        self.scaling = self.head_dim**-0.5
        self.layer_idx = layer_idx
        self.is_decoder = is_decoder
        self.is_causal = is_causal

        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)
        self.gate_proj = nn.Linear(config.d_model, config.d_model) if config.attention_gate else None
        self.q_norm = nn.LayerNorm(self.head_dim) if config.attention_qk_norm else None
        self.k_norm = nn.LayerNorm(self.head_dim) if config.attention_qk_norm else None
        self.output_norm = None
        if config.attention_output_norm == "layer_norm":
            self.output_norm = nn.LayerNorm(config.d_model)
        elif config.attention_output_norm == "gated_rms":
            self.output_norm = GatedRMSNorm(config.d_model)
        # the logarithm of a learnable gamma is trained, so that gamma stays positive
        self.log_gamma = None
        if config.attention_gamma_learnable:
            self.log_gamma = nn.Parameter(torch.full((heads,), math.log(config.attention_gamma)))

    def forward(
        self,
        hidden_states: Tensor,
        context: AttentionContext,
        key_value_states: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """hidden_states (batch, queries, d_model) → the same, the weights if `eager`, the figures (5,) if wanted."""
        query = self._split_heads(self.q_proj(hidden_states))
        if self.q_norm is not None:
            query = self.q_norm(query)
        key, value = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights, *statistics = attention_interface(
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
        return self.out_proj(output), weights, self._figures(context, *statistics)

    def row_scale(self, context: AttentionContext) -> Tensor | None:
        """r_i of Eq. 6 (or of the length scaling), (batch, 1 or heads, queries), float32 or float64; None for 1."""
        if context.length_scale is None:
            return None
        if self.length_scaled:
            return context.length_scale
        if self.log_gamma is not None:
            return context.length_scale * torch.exp(-self.log_gamma.to(context.length_scale.dtype)).view(1, -1, 1)
        return context.length_scale / self.gamma

    def _keys_and_values(
        self, hidden_states: Tensor, key_value_states: Tensor | None, past_key_values: Cache | None
    ) -> tuple[Tensor, Tensor]:
        is_cross_attention = key_value_states is not None
        cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            cache = (
                past_key_values.cross_attention_cache if is_cross_attention else past_key_values.self_attention_cache
            )
            if is_cross_attention and past_key_values.is_updated.get(self.layer_idx):
                layer = cache.layers[self.layer_idx]
                return layer.keys, layer.values
        states = key_value_states if is_cross_attention else hidden_states
        key, value = self._split_heads(self.k_proj(states)), self._split_heads(self.v_proj(states))
        if self.k_norm is not None:
            key = self.k_norm(key)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
            if is_cross_attention and isinstance(past_key_values, EncoderDecoderCache):
                past_key_values.is_updated[self.layer_idx] = True
        return key, value

    def _split_heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def _figures(
        self, context: AttentionContext, row_sum: Tensor | None = None, row_sum_log: Tensor | None = None
    ) -> Tensor | None:
        if row_sum is None or context.row_weight is None:
            return None
        return module_figures(
            row_sum, row_sum_log, context.visible_keys, context.row_weight, entropy_margin=self.entropy_margin
        )


class ReLUFormerLayer(GradientCheckpointingLayer):
    """What encoder and decoder layers share: the feed-forward network, and dropout, residual and norm around each block."""

    def __init__(self, config: ReLUFormerConfig, ffn_dim: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.ffn_temperature = config.ffn_temperature
        self.activation_fn = None if config.activation_function == "softmax" else ACT2FN[config.activation_function]
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.ffn_layer_norm = nn.LayerNorm(config.d_model) if config.ffn_output_norm == "layer_norm" else None
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def add_and_norm(self, residual: Tensor, update: Tensor, norm: nn.LayerNorm) -> Tensor:
        return norm(residual + nn.functional.dropout(update, p=self.dropout, training=self.training))

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        """Eq. 1 with any activation; with softmax it is the key-value memory of Eq. 2, and with a norm, Table 1's third row."""
        scores = self.fc1(hidden_states)
        if self.activation_fn is None:
            scores = torch.softmax(scores / self.ffn_temperature, dim=-1)
        else:
            scores = self.activation_fn(scores)
        scores = nn.functional.dropout(scores, p=self.activation_dropout, training=self.training)
        update = self.fc2(scores)
        return update if self.ffn_layer_norm is None else self.ffn_layer_norm(update)


class ReLUFormerEncoderLayer(ReLUFormerLayer):
    def __init__(self, config: ReLUFormerConfig, layer_idx: int | None = None) -> None:
        super().__init__(config, config.encoder_ffn_dim)
        self.self_attn = ReLUFormerAttention(config, config.encoder_attention_heads, layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, hidden_states: Tensor, context: AttentionContext, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """(batch, length, d_model) → the same, and the figures (1, 5) of its attention if wanted."""
        attended, _, figures = self.self_attn(hidden_states, context, **kwargs)
        hidden_states = self.add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        hidden_states = self.add_and_norm(hidden_states, self.feed_forward(hidden_states), self.final_layer_norm)
        return hidden_states, None if figures is None else figures.unsqueeze(0)


class ReLUFormerDecoderLayer(ReLUFormerLayer):
    def __init__(self, config: ReLUFormerConfig, layer_idx: int | None = None) -> None:
        super().__init__(config, config.decoder_ffn_dim)
        heads = config.decoder_attention_heads
        self.self_attn = ReLUFormerAttention(config, heads, layer_idx, is_decoder=True, is_causal=True)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.encoder_attn = ReLUFormerAttention(config, heads, layer_idx, is_decoder=True)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        hidden_states: Tensor,
        context: AttentionContext,
        encoder_hidden_states: Tensor | None = None,
        cross_context: AttentionContext | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(batch, length, d_model) → the same, and the figures (2, 5) of its attentions (self, cross) if wanted."""
        attended, _, figures = self.self_attn(hidden_states, context, past_key_values=past_key_values, **kwargs)
        hidden_states = self.add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        if encoder_hidden_states is not None:
            attended, _, cross_figures = self.encoder_attn(
                hidden_states, cross_context, encoder_hidden_states, past_key_values=past_key_values, **kwargs
            )
            hidden_states = self.add_and_norm(hidden_states, attended, self.encoder_attn_layer_norm)
            figures = None if figures is None else torch.stack([figures, cross_figures])
        elif figures is not None:
            figures = figures.unsqueeze(0)
        hidden_states = self.add_and_norm(hidden_states, self.feed_forward(hidden_states), self.final_layer_norm)
        return hidden_states, figures
