"""Layers of the decoder-only language model: attention and feed-forward network, each behind a norm or without."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention_reluformer import AttentionContext
from .configuration_decoder import ReLUFormerDecoderConfig
from .feed_forward_reluformer import FeedForward, activation_norms, feed_forward_activation
from .multihead_reluformer import ReLUFormerAttention
from .outputs_reluformer import LayerOutput


def norm_of(config: ReLUFormerDecoderConfig) -> nn.Module:
    """A new norm over the features."""
    kind = nn.RMSNorm if config.norm_type == "rms_norm" else nn.LayerNorm
    return kind(config.hidden_size, eps=config.norm_eps)


class ReLUFormerMLP(FeedForward):
    """`fc2(f(fc1(x)))`."""

    def __init__(self, config: ReLUFormerDecoderConfig, layer_idx: int) -> None:
        super().__init__()
        self.activation_dropout = config.activation_dropout
        self.activation_fn = feed_forward_activation(config, config.hidden_act, layer_idx)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.ffn_bias)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.ffn_bias)

    def forward(self, hidden_states: Tensor, row_weight: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """(batch, length, hidden_size) → the same; with `row_weight`, also the `activation_norms`."""
        activated = self.activation_fn(self.fc1(hidden_states))
        update = self.fc2(nn.functional.dropout(activated, p=self.activation_dropout, training=self.training))
        return update if row_weight is None else (update, activation_norms(activated, row_weight))

    def last_projection(self) -> nn.Linear:
        """What writes to the residual stream, see `scale_residual_init`."""
        return self.fc2


class ReLUFormerGatedMLP(FeedForward):
    """`down_proj(f(gate_proj(x)) * up_proj(x))`, with `ffn_type="dglu"` the activation in both factors. Names are Llama's."""

    def __init__(self, config: ReLUFormerDecoderConfig, layer_idx: int) -> None:
        super().__init__()
        self.activation_dropout = config.activation_dropout
        self.activation_fn = feed_forward_activation(config, config.hidden_act, layer_idx)
        self.up_fn = ACT2FN[config.hidden_act] if config.ffn_type == "dglu" else nn.Identity()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.ffn_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.ffn_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.ffn_bias)

    def forward(self, hidden_states: Tensor, row_weight: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """(batch, length, hidden_size) → the same; with `row_weight`, also the `activation_norms`."""
        activated = self.activation_fn(self.gate_proj(hidden_states)) * self.up_fn(self.up_proj(hidden_states))
        update = self.down_proj(nn.functional.dropout(activated, p=self.activation_dropout, training=self.training))
        return update if row_weight is None else (update, activation_norms(activated, row_weight))

    def last_projection(self) -> nn.Linear:
        """What writes to the residual stream, see `scale_residual_init`."""
        return self.down_proj


class ReLUFormerCausalLayer(GradientCheckpointingLayer):
    """One layer; with `normalization="none"` it has no norms."""

    def __init__(self, config: ReLUFormerDecoderConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.self_attn = ReLUFormerAttention(
            config,
            config.num_attention_heads,
            layer_idx,
            is_decoder=True,
            is_causal=True,
            qkv_bias=config.query_key_bias,
            value_bias=config.value_bias,
            output_bias=config.output_bias,
            key_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
        )
        self.mlp = (ReLUFormerMLP if config.ffn_type == "mlp" else ReLUFormerGatedMLP)(config, layer_idx)
        for projection in (self.self_attn.out_proj, self.mlp.last_projection()):
            projection.writes_to_residual = True  # for `scale_residual_init`
        self.input_layernorm = self.post_attention_layernorm = None
        if config.normalization == "pre":
            self.input_layernorm, self.post_attention_layernorm = norm_of(config), norm_of(config)

    def forward(
        self,
        hidden_states: Tensor,
        context: AttentionContext,
        ffn_row_weight: Tensor | None = None,
        **kwargs: Any,
    ) -> LayerOutput:
        """(batch, length, hidden_size) → the same, and if wanted S and T of its attention and the norms (1,) of its
        FFN."""
        normed = hidden_states if self.input_layernorm is None else self.input_layernorm(hidden_states)
        attended, _, sums = self.self_attn(normed, context, **kwargs)
        hidden_states = hidden_states + nn.functional.dropout(attended, p=self.dropout, training=self.training)
        normed = (
            hidden_states if self.post_attention_layernorm is None else self.post_attention_layernorm(hidden_states)
        )
        norms = None
        if ffn_row_weight is None:
            update = self.mlp(normed)
        else:
            update, norms = self.mlp(normed, ffn_row_weight)
        update = nn.functional.dropout(update, p=self.dropout, training=self.training)
        return hidden_states + update, norms, *sums
