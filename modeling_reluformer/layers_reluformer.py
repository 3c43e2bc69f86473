"""Layers of ReLUFormer for translation: positions, encoder and decoder layer (post-LN, Vaswani et al.).

Parameter names are Marian's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention_reluformer import AttentionContext
from .configuration_reluformer import ReLUFormerConfig
from .feed_forward_reluformer import FeedForward, activation_norms, feed_forward_activation
from .multihead_reluformer import ReLUFormerAttention
from .outputs_reluformer import LayerOutput


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


class ReLUFormerLayer(FeedForward, GradientCheckpointingLayer):
    """What encoder and decoder layers share: the feed-forward network, and dropout, residual and norm around each block."""

    def __init__(self, config: ReLUFormerConfig, ffn_dim: int, ffn_layer: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.ffn_temperature = config.ffn_temperature
        self.activation_fn = None
        if config.activation_function != "softmax":
            self.activation_fn = feed_forward_activation(config, config.activation_function, ffn_layer)
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.ffn_layer_norm = nn.LayerNorm(config.d_model) if config.ffn_output_norm == "layer_norm" else None
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def add_and_norm(self, residual: Tensor, update: Tensor, norm: nn.LayerNorm) -> Tensor:
        return norm(residual + nn.functional.dropout(update, p=self.dropout, training=self.training))

    def feed_forward(self, hidden_states: Tensor, row_weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Eq. 1 with any activation; with softmax it is the key-value memory of Eq. 2, and with a norm, Table 1's third row.

        Returns:
            (batch, length, d_model), and with `row_weight` the `activation_norms`.
        """
        scores = self.fc1(hidden_states)
        if self.activation_fn is None:
            scores = torch.softmax(scores / self.ffn_temperature, dim=-1)
        else:
            scores = self.activation_fn(scores)
        norms = None if row_weight is None else activation_norms(scores, row_weight)
        scores = nn.functional.dropout(scores, p=self.activation_dropout, training=self.training)
        update = self.fc2(scores)
        return update if self.ffn_layer_norm is None else self.ffn_layer_norm(update), norms


class ReLUFormerEncoderLayer(ReLUFormerLayer):
    def __init__(self, config: ReLUFormerConfig, layer_idx: int | None = None) -> None:
        super().__init__(config, config.encoder_ffn_dim, layer_idx or 0)
        self.self_attn = ReLUFormerAttention(config, config.encoder_attention_heads, layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(
        self, hidden_states: Tensor, context: AttentionContext, ffn_row_weight: Tensor | None = None, **kwargs: Any
    ) -> LayerOutput:
        """(batch, length, d_model) → the same, and if wanted the norms (1,) of its FFN, and S and T of its attention."""
        attended, _, sums = self.self_attn(hidden_states, context, **kwargs)
        hidden_states = self.add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        update, norms = self.feed_forward(hidden_states, ffn_row_weight)
        hidden_states = self.add_and_norm(hidden_states, update, self.final_layer_norm)
        return hidden_states, norms, *sums


class ReLUFormerDecoderLayer(ReLUFormerLayer):
    def __init__(self, config: ReLUFormerConfig, layer_idx: int | None = None) -> None:
        super().__init__(config, config.decoder_ffn_dim, config.encoder_layers + (layer_idx or 0))
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
        ffn_row_weight: Tensor | None = None,
        **kwargs: Any,
    ) -> LayerOutput:
        """(batch, length, d_model) → the same, and if wanted the norms (1,) of its FFN, and S and T of its attentions, of self
        and cross."""
        attended, _, sums = self.self_attn(hidden_states, context, **kwargs)
        hidden_states = self.add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        if encoder_hidden_states is not None:
            attended, _, cross_sums = self.encoder_attn(hidden_states, cross_context, encoder_hidden_states, **kwargs)
            hidden_states = self.add_and_norm(hidden_states, attended, self.encoder_attn_layer_norm)
            sums += cross_sums
        update, norms = self.feed_forward(hidden_states, ffn_row_weight)
        hidden_states = self.add_and_norm(hidden_states, update, self.final_layer_norm)
        return hidden_states, norms, *sums
