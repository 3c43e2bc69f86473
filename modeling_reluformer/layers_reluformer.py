"""What every model of this package is made of, in the order of a forward pass: positions, what each query sees,
attention, feed-forward networks, one layer after the other, and the base class with inputs and loss.

What Marian's Transformer has is here as there: projections with biases to heads and back, residuals, dropout, linear
layers with an activation between them. What differs:

- A weight is r_i h(q·k / sqrt(d)), the activation of one score times the scale of its row, in place of a softmax over
  the row (`ReLUFormerAttention`). Norms of queries and keys, a gate and a norm of the output are options.
- r_i follows from n_i, the keys that query i can see, with padding, causality, a cache and packed segments. It is
  computed once for all layers of a stack (`attention_context`). For example, 16 visible keys and gamma 16 make
  r_i = 1 / (16 sqrt(8)) = 0.022.
- Where the loss needs them, each attention returns the sums S and T of its rows, and each feed-forward network the
  norms of its activations (`run_layers`). The base class computes the regulariser from them
  (`AttentionPreTrainedModel._losses`).
- A feed-forward network may set more of its activations to zero, by a threshold or by keeping the largest k
  (`SparseActivation`).
"""

import difflib
import functools
import inspect
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from transformers import AttentionInterface, Cache, EncoderDecoderCache, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput, TransformersKwargs, logging

from .attention_reluformer import (
    NON_NEGATIVE,
    Visibility,
    check_regularization_share,
    positions_from_segments,
    reference_attention,
    scale_of_rows,
    wide,
)
from .configuration_reluformer import (
    CACHE_NAME,
    AttentionConfig,
    require_attention_implementation,
    valid_attention_implementations,
)
from .loss_reluformer import (
    DEFAULT_ENTROPY_MARGIN,
    IGNORED_LABEL,
    Measured,
    ModuleSample,
    activation_norms,
    cross_entropy_sum,
    module_sums,
    regularized_loss,
)

try:  # a copy of these files on the Hub takes the fused paths from the installed package
    from reluformer.modeling_reluformer.fused.model_attention import SharedSources, fused_attention_forward
    from reluformer.modeling_reluformer.fused.vocabulary_loss import vocabulary_loss
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("reluformer"):
        raise
    fused_attention_forward = vocabulary_loss = None
    SharedSources = type("SharedSources", (), {})

logger = logging.get_logger(__name__)

OWN_IMPLEMENTATIONS = ("eager", "fused")


def require_positions(length: int, most: int) -> None:
    """Raises a `ValueError` for a sequence that is longer than `most`, the configuration's max_position_embeddings."""
    if length > most:
        raise ValueError(
            f"A sequence of {length} tokens is longer than max_position_embeddings={most}: shorten it, or take a model "
            "with more positions."
        )


def require_labels(labels: Tensor, tokens: Tensor | None) -> None:
    """Raises a `ValueError` for labels that are not int64 of the shape (batch, length), one for each of the tokens:
    ids, or embeddings. None: not known yet."""
    expected = None if tokens is None else tuple(tokens.shape[:2])
    if labels.ndim != 2 or labels.dtype != torch.int64 or expected not in (None, tuple(labels.shape)):
        raise ValueError(
            f"labels must be int64 of the shape {expected or '(batch, length)'}, one for each token; "
            f"got {labels.dtype} {tuple(labels.shape)}."
        )


def tokens_in(cache: Cache | None) -> int | Tensor:
    """How many tokens a cache holds; of a static cache a tensor, copied since it counts in place while the layers
    write."""
    seen = 0 if cache is None else cache.get_seq_length()
    return seen.clone() if isinstance(seen, Tensor) else seen


def token_positions(
    length: int,
    device: torch.device,
    attention_mask: Tensor | None,
    segments: Tensor | None,
    seen: int | Tensor = 0,
) -> Tensor:
    """Positions of `length` tokens after `seen` others in a cache, (batch or 1, length); padding on the left does not
    count.

    attention_mask: (batch, seen + length), or wider with a static cache; one of four dimensions says nothing here.
    """
    if segments is not None:
        return positions_from_segments(segments)
    columns = torch.arange(length, device=device) + seen
    if attention_mask is None or attention_mask.ndim != 2:
        return columns.unsqueeze(0)
    positions = (attention_mask.bool().cumsum(-1) - 1).clamp_min(0)  # padding has that of the last real token before it
    return positions.index_select(1, columns.clamp_max(positions.shape[1] - 1))


def attention_visibility(
    attention_mask: Tensor | None,
    *,
    batch: int,
    queries: int,
    keys: int,
    causal: bool = False,
    query_offset: int | Tensor = 0,
    segments: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Visibility:
    """Reads a mask, and the segments of queries and keys, as users give them.

    Args:
        attention_mask: None, (batch, keys) with 1 for real tokens, or a whole boolean (batch, 1, queries, keys).
            A causal (batch, seen) mask may be shorter than a static cache; keys that were not written yet are not
            visible.

    Raises:
        ValueError: a mask of another shape, or with values other than 0 and 1; one of four dimensions that is not
            boolean or comes with segments; segments that do not fit queries and keys, as with a cache.
    """
    for name, numbers, length in zip(("queries", "keys"), segments, (queries, keys), strict=True):
        if numbers is not None and numbers.shape != (batch, length):
            raise ValueError(
                f"The segment ids of the {name} must have the shape (batch, {name}) = {(batch, length)}; got "
                f"{tuple(numbers.shape)}. Packed sequences do not go with a cache that holds earlier tokens: pass them "
                "whole."
            )
    if attention_mask is None:
        return Visibility(None, causal, query_offset, *segments)
    shape, whole = attention_mask.shape, attention_mask.ndim == 4
    if whole:
        fits = shape[0] in (1, batch) and shape[1:] == (1, queries, keys)
        fits = fits and attention_mask.dtype == torch.bool and segments[0] is None
    else:
        written = keys
        if causal:
            written = query_offset + queries if isinstance(query_offset, int) else 0
        fits = len(shape) == 2 and shape[0] == batch and written <= shape[1] <= keys
    if not fits:
        raise ValueError(
            f"An attention mask must have the shape (batch, keys) = ({batch}, {keys}) or "
            f"(batch, 1, queries, keys) = ({batch}, 1, {queries}, {keys}); got {tuple(shape)}. One of four dimensions "
            f"must be boolean, True where the key is visible, and goes without segment ids; this one is "
            f"{attention_mask.dtype}."
        )
    if whole:
        return Visibility(given_mask=attention_mask)
    visible = attention_mask.bool()
    _refuse_additive(attention_mask, visible)
    if shape[1] < keys:
        visible = nn.functional.pad(visible, (0, keys - shape[1]), value=False)
    return Visibility(visible, causal, query_offset, *segments)


def _refuse_additive(mask: Tensor, visible: Tensor) -> None:
    """Additive masks, 0 where the key is visible, would be read the wrong way round. Integers are checked on a CPU
    alone."""
    if mask.dtype == torch.bool or is_compiling() or not (mask.is_floating_point() or mask.device.type == "cpu"):
        return
    if not (visible == mask).all():
        raise ValueError(
            "A two-dimensional attention mask holds 1 for real tokens and 0 for padding; this one has other values. "
            "Additive masks do not work with point-wise activations."
        )


def library_mask(
    implementation: str,
    visibility: Visibility,
    queries: int,
    keys: int,
    device: torch.device,
    of_other_keys: bool = False,
) -> Tensor | None:
    """The mask for the library's own functions, boolean for `sdpa`, else (batch, keys); None where causality alone
    hides keys.

    of_other_keys: whether keys and queries are of two sequences, as in cross-attention. The library's function for
    FlashAttention takes a mask of the keys for one of the queries, too.
    """
    if implementation in OWN_IMPLEMENTATIONS:
        return None
    padding = visibility.key_padding_mask
    if padding is not None and not is_compiling() and bool(padding.all()):
        padding = None
    whole = visibility.query_segments is not None or visibility.given_mask is not None
    if implementation != "sdpa":
        if whole:
            raise ValueError(
                "Packed sequences and masks of four dimensions need attn_implementation 'sdpa' or 'eager', not "
                f"{implementation!r}."
            )
        if isinstance(visibility.query_offset, Tensor) or (of_other_keys and padding is not None):
            raise ValueError(
                "A static cache, and a source with padding that a target reads, need attn_implementation 'sdpa' or "
                f"'eager', not {implementation!r}, which would read the wrong keys."
            )
        return padding
    if padding is None and not whole and (queries == keys or not visibility.causal):
        return None
    return visibility.dense(queries, keys, device)


@dataclass(frozen=True)
class AttentionContext:
    """What all layers of a stack share in one forward pass, for one kind of attention (encoder self, decoder self,
    cross).

    attend: the attention function of the implementation. visibility: which keys each query sees. mask: the same for the
    library's own functions.
    visible_keys: n_i, (batch, queries). row_scale: r_i of Eq. 6 (or of the length scaling), (batch, 1, queries),
    float32 or float64, without gamma where that is learned, which differs from layer to layer; None for 1.
    measured: what the loss needs of the layers; None without labels.
    rotation: cosines and sines of rotary positions, (batch or 1, 1, queries, head_dim) each; None where there are none.
    """

    attend: Callable[..., Any]
    visibility: Visibility
    mask: Tensor | None
    visible_keys: Tensor
    row_scale: Tensor | None
    measured: Measured | None = None
    rotation: tuple[Tensor, Tensor] | None = None
    entropy_margin: float = DEFAULT_ENTROPY_MARGIN

    def for_module(self, module: int) -> "AttentionContext":
        """The same for one attention of the stack: without statistics where the pass does not take its regulariser."""
        if self.measured is None or self.measured.takes(module):
            return self
        return replace(self, measured=replace(self.measured, statistics="none"))

    @property
    def ffn_row_weight(self) -> Tensor | None:
        """The row weights of `activation_norms`, where these are wanted."""
        return self.measured.row_weight if self.measured is not None and self.measured.ffn_norms else None

    def to(self, device: torch.device, non_blocking: bool = False) -> "AttentionContext":
        """A copy on another device: a model spread over devices by `device_map` moves its inputs by this name."""

        def move(item: Any) -> Any:
            if isinstance(item, Tensor):
                return item.to(device, non_blocking=non_blocking)
            if isinstance(item, Visibility | Measured):
                return replace(item, **{name: move(value) for name, value in vars(item).items()})
            return tuple(map(move, item)) if isinstance(item, tuple) else item

        return replace(self, **{name: move(value) for name, value in vars(self).items()})


def attention_context(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    *,
    keys: int | None = None,
    cache: Cache | None = None,
    measured: Measured | None = None,
    rotation: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> AttentionContext:
    """Masks, visible-key counts and row scales, once for all layers of a stack.

    keys: the length of the key tensors. Default: of the inputs, with what is in the `cache` before them. options: of
    `attention_visibility`; the others: see `AttentionContext`.
    """
    batch, queries = inputs_embeds.shape[:2]
    of_other_keys = keys is not None
    if keys is None:
        keys = queries if cache is None else cache.get_mask_sizes(queries, 0)[0]
    visibility = attention_visibility(attention_mask, batch=batch, queries=queries, keys=keys, **options)
    if config._attn_implementation == "fused" and visibility.query_segments is not None:
        visibility = replace(visibility, cu_seqlens=visibility.segment_ends())
    device = inputs_embeds.device
    mask = library_mask(config._attn_implementation, visibility, queries, keys, device, of_other_keys)
    visible_keys = visibility.count(batch, queries, keys, inputs_embeds.device).to(wide(inputs_embeds.dtype))
    row_scale = scale_of_rows(
        visible_keys.unsqueeze(1),
        config.attention_scaling,
        gamma=None if config.attention_gamma_learnable else config.attention_gamma,
        alpha=config.attention_alpha,
    )
    # looked up here, once: reading a configuration takes a layer that decodes one token longer than its attention
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager_attention_forward)
    return AttentionContext(
        attend, visibility, mask, visible_keys, row_scale, measured, rotation, config.entropy_margin
    )


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    visibility: Visibility,
    row_scale: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    statistics: str = "none",
    **kwargs: Any,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The reference, for every activation. Returns the output (batch, queries, heads, head_dim), the weights, S and
    T."""
    mask = visibility.dense(query.shape[2], key.shape[2], query.device)
    options = {"row_scale": row_scale, "scale": scaling, "dropout_p": dropout, "statistics": statistics}
    result = reference_attention(query, key, value, activation=module.activation, mask=mask, **options)
    return result.output.transpose(1, 2), *result[1:]


# An instance of its own: the library's global registry stays as it is.
ALL_ATTENTION_FUNCTIONS = AttentionInterface()
if fused_attention_forward is not None:
    ALL_ATTENTION_FUNCTIONS["fused"] = fused_attention_forward


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
    """Rotary positions (arXiv 2104.09864), as in Llama: states (batch, heads, length, head_dim), the others with one
    head."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines + torch.cat([-second, first], dim=-1) * sines


class ReLUFormerAttention(nn.Module):
    """Multi-head attention with the activation of the configuration (Eq. 6); self-attention or cross-attention."""

    def __init__(
        self,
        config: AttentionConfig,
        heads: int,
        layer_idx: int | None = None,
        is_causal: bool = False,
        query_key_bias: bool = True,
        *,
        value_bias: bool | None = None,
        output_bias: bool = True,
        key_heads: int | None = None,
        head_dim: int | None = None,
    ) -> None:
        """value_bias: default as query_key_bias. key_heads: of which heads is a multiple, default as heads. head_dim:
        default hidden_size / heads."""
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
        self.is_causal = is_causal

        merged, keys = heads * self.head_dim, (key_heads or heads) * self.head_dim
        if keys < merged:
            self.num_key_value_groups = merged // keys  # by this name, the library's own functions find it
        self.k_proj = nn.Linear(features, keys, bias=query_key_bias)
        self.v_proj = nn.Linear(features, keys, bias=query_key_bias if value_bias is None else value_bias)
        self.q_proj = nn.Linear(features, merged, bias=query_key_bias)
        self.out_proj = nn.Linear(merged, features, bias=output_bias)
        self.gate_proj = nn.Linear(features, merged) if config.attention_gate else None
        self.q_norm = nn.LayerNorm(self.head_dim) if config.attention_qk_norm else None
        self.k_norm = nn.LayerNorm(self.head_dim) if config.attention_qk_norm else None
        norms = {"none": lambda features: None, "layer_norm": nn.LayerNorm, "gated_rms": GatedRMSNorm}
        self.output_norm = norms[config.attention_output_norm](merged)
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
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, Tensor | None]]:
        """hidden_states (batch, queries, features) → the same, the weights if `eager`, S and T of the rows, None if not
        wanted.

        key_value_states: (sources, keys, features). Where `batch` is a multiple of `sources`, neighbouring rows share a
        source: they are computed as further queries of it, so that its keys are held and read once. The cache is among
        `kwargs`, by the name at which the library's checkpointing of layers removes it.
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
            statistics="none" if context.measured is None else context.measured.statistics,
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
        return output, weights, tuple(statistics) or (None, None)

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


class SparseActivation(nn.Module):
    """An activation with more zeros: statistical top-k of the scores, the function, a threshold, exact top-k, in this
    order.

    sparsity, threshold, top_k: as `activation_sparsity_pattern`, `ffn_threshold` and `ffn_top_k` of a configuration.
    `negative_probability`: in training mode, each score below 0 goes through SiLU with this probability.
    """

    def __init__(
        self, function: nn.Module, sparsity: float = 0.0, threshold: float = 0.0, top_k: int | None = None
    ) -> None:
        super().__init__()
        self.function, self.sparsity, self.threshold, self.top_k = function, sparsity, threshold, top_k
        self.quantile = NormalDist().inv_cdf(sparsity) if sparsity else None
        self.negative_probability = 0.0

    def forward(self, scores: Tensor) -> Tensor:
        """(…, neurons) → the same."""
        if self.quantile is not None:  # as in Gemma 3n; the deviation is the biased one
            deviation, mean = torch.std_mean(scores, dim=-1, keepdim=True, correction=0)
            scores = nn.functional.relu(scores - (mean + deviation * self.quantile))
        activated = self.function(scores)
        if self.training and self.negative_probability > 0:
            drawn = torch.rand_like(scores, dtype=torch.float32) < self.negative_probability
            activated = torch.where(drawn & (scores < 0), nn.functional.silu(scores), activated)
        if self.threshold > 0:
            activated = activated.masked_fill(activated.abs() < self.threshold, 0)
        if self.top_k is not None:
            kept = activated.abs().topk(self.top_k, dim=-1).indices
            activated = torch.zeros_like(activated).scatter(-1, kept, activated.gather(-1, kept))
        return activated


def feed_forward_activation(config: AttentionConfig, activation: str, layer: int) -> nn.Module:
    """The activation of the FFN of one layer, which is that of `ACT2FN` itself where the configuration asks for no more
    zeros."""
    function, pattern = ACT2FN[activation], config.activation_sparsity_pattern
    sparsity = float(pattern[layer] if isinstance(pattern, list) else pattern or 0.0)
    if not sparsity and not config.ffn_threshold and config.ffn_top_k is None:
        return function
    return SparseActivation(function, sparsity, config.ffn_threshold, config.ffn_top_k)


def dropped(states: Tensor, probability: float, training: bool) -> Tensor:
    """Dropout in training; else untouched, since even the call of torch's function costs a step of decoding
    microseconds."""
    return nn.functional.dropout(states, probability) if training else states


class ReLUFormerMLP(nn.Module):
    """`fc2(f(fc1(x)))`; by `glu`, `down_proj(f(gate_proj(x)) * up_proj(x))`; by `dglu`, with f in both factors.

    config: gives `hidden_size`, `intermediate_size` and, as `hidden_act`, f.
    """

    def __init__(
        self, config: Any, layer_idx: int, ffn_type: str = "mlp", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.gated = ffn_type != "mlp"
        self.dropout = dropout
        self.activation_fn = feed_forward_activation(config, config.hidden_act, layer_idx)
        names = ("gate_proj", "up_proj", "down_proj") if self.gated else ("fc1", "fc2")  # Llama's and OPT's
        for name in names[:-1]:
            self.add_module(name, nn.Linear(config.hidden_size, config.intermediate_size, bias=bias))
        self.add_module(names[-1], nn.Linear(config.intermediate_size, config.hidden_size, bias=bias))
        if self.gated:
            self.up_fn = ACT2FN[config.hidden_act] if ffn_type == "dglu" else nn.Identity()

    def forward(self, hidden_states: Tensor, row_weight: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """(batch, length, hidden_size) → the same; with `row_weight`, also the `activation_norms`."""
        if self.gated:
            activated = self.activation_fn(self.gate_proj(hidden_states)) * self.up_fn(self.up_proj(hidden_states))
            update = self.down_proj(dropped(activated, self.dropout, self.training))
        else:
            activated = self.activation_fn(self.fc1(hidden_states))
            update = self.fc2(dropped(activated, self.dropout, self.training))
        return update if row_weight is None else (update, activation_norms(activated, row_weight))


# Of a layer: hidden states, norms of its FFN, and S and T of the rows of each of its attentions, (batch, heads,
# queries) each, or None where they are not wanted. Not nested: reentrant checkpointing differentiates no tensor of an
# inner tuple.
LayerOutput = tuple[Tensor | None, ...]


class ReLUFormerPreNormLayer(GradientCheckpointingLayer):
    """Self-attention and feed-forward network, each after a norm: a layer of the language model and of the Vision
    Transformer.

    make_norm: gives a new norm over the features.
    """

    def __init__(
        self, self_attn: nn.Module, mlp: nn.Module, make_norm: Callable[[], nn.Module], dropout: float
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp, self.dropout = self_attn, mlp, dropout
        self.input_layernorm, self.post_attention_layernorm = make_norm(), make_norm()

    def forward(self, hidden_states: Tensor, context: AttentionContext, **kwargs: Any) -> LayerOutput:
        """(batch, length, hidden_size) → the same, the norms of the FFN, and S and T of the attention."""
        attended, _, rows = self.self_attn(self.input_layernorm(hidden_states), context, **kwargs)
        hidden_states = hidden_states + dropped(attended, self.dropout, self.training)
        normed, row_weight = self.post_attention_layernorm(hidden_states), context.ffn_row_weight
        if row_weight is None:  # by the networks' own call, which `use_sparse_ffn` replaces
            update, norms = self.mlp(normed), None
        else:
            update, norms = self.mlp(normed, row_weight)
        return hidden_states + dropped(update, self.dropout, self.training), norms, *rows


@dataclass
class LayerSums:
    """`attention_sums`: (modules, 5), see `module_sums`; `ffn_norms`: (FFNs,), see `activation_norms`; None: not asked
    for."""

    attention_sums: Tensor | None = None
    ffn_norms: Tensor | None = None


def join_sums(parts: Iterable[Tensor | None]) -> Tensor | None:
    """What layers or stacks have returned, one after the other; None where nothing was."""
    parts = [part for part in parts if part is not None]
    return torch.cat([part.to(parts[0].device) for part in parts]) if parts else None


def run_layers(
    layers: Iterable[nn.Module],
    hidden_states: Tensor,
    context: AttentionContext,
    encoder_hidden_states: Tensor | None = None,
    cross_context: AttentionContext | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """hidden_states (batch, length, features) through all layers → the same, `attention_sums` and `ffn_norms` of them
    all.

    Where there is a `cross_context`, each layer has a cross-attention to the `encoder_hidden_states` after its
    self-attention.
    """
    layers = list(layers)
    contexts = [context] if cross_context is None else [context, cross_context]
    # S and T of every module: first those of all self-attentions, then those of all cross-attentions
    statistics: list[list[tuple[Tensor | None, Tensor | None]]] = [[] for _ in contexts]
    norms = []
    for index, layer in enumerate(layers):
        self_context, *others = [each.for_module(kind * len(layers) + index) for kind, each in enumerate(contexts)]
        source = [encoder_hidden_states, *others] if others else []
        hidden_states, layer_norms, *sums = layer(hidden_states, self_context, *source, **options)
        norms.append(layer_norms)
        for of_kind, of_module in zip(statistics, zip(sums[::2], sums[1::2], strict=True), strict=True):
            of_kind.append(of_module)
    return hidden_states, _sums_of_modules(contexts, statistics), join_sums(norms)


def _sums_of_modules(
    contexts: Sequence[AttentionContext], statistics: Sequence[Sequence[tuple[Tensor | None, Tensor | None]]]
) -> Tensor | None:
    """`module_sums` of all modules of a stack at once, (modules, 5): the rows of S and T have one shape.

    statistics: for each context, (S, T) of each of its modules, None where they were not wanted; the sums of such a
    module are 0. None where no statistics were wanted at all.
    """
    measured = contexts[0].measured
    if measured is None or measured.statistics == "none":
        return None
    visible_keys = contexts[0].visible_keys
    modules = [(*sums, each) for each, of_kind in zip(contexts, statistics, strict=True) for sums in of_kind]
    taken = [index for index, (row_sum, _, _) in enumerate(modules) if row_sum is not None]
    if not taken:
        return visible_keys.new_zeros(len(modules), 5)
    row_sums, row_sum_logs, of_modules = zip(*(modules[index] for index in taken), strict=True)
    device = row_sums[0].device

    def stacked(parts: Iterable[Tensor]) -> Tensor:
        return torch.stack([part.to(device) for part in parts])

    row_weight = measured.row_weight.to(device)
    if len(contexts) > 1:  # n_i of cross-attention are others
        visible_keys = stacked(each.visible_keys.expand_as(row_weight) for each in of_modules)
    sums = module_sums(
        stacked(row_sums),
        None if row_sum_logs[0] is None else stacked(row_sum_logs),
        visible_keys.to(device),
        row_weight,
        entropy_margin=contexts[0].entropy_margin,
    )
    if len(taken) == len(modules):
        return sums
    # not by an index tensor, whose copy to a GPU the host would wait for
    of_module = dict(zip(taken, sums.unbind(), strict=True))
    zero = sums.new_zeros(5)
    return torch.stack([of_module.get(index, zero) for index in range(len(modules))])


# What Transformers names like this is part of the input: without it the result is another one.
_INPUTS = re.compile(r"\w+_(ids|mask|embeds|values)|\w*labels|is_causal")
# What Transformers gives every model, whether it reads it or not; the tokenizer where `generate` looks for
# `stop_strings`.
_PASSED_ON = ("return_dict", "use_cache", "tokenizer")


def checked_keywords(forward: Callable[..., Any], more: Sequence[str] = ()) -> Callable[..., Any]:
    """A decorator of forward passes: the cache may come by either name, and unknown keywords go through (each version
    of the library has new ones), but for a part of the input and what nearly is a name of ours. `more`: what it takes
    in its kwargs."""
    known = {*inspect.signature(forward).parameters, *more}
    known |= {"past_key_values"} if "cache" in known else set()

    @functools.wraps(forward)
    def checked(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        if "past_key_values" in kwargs and "cache" in known:
            if "cache" in kwargs:
                raise TypeError("cache and past_key_values are two names of one argument; give one of them.")
            kwargs["cache"] = kwargs.pop("past_key_values")
            if CACHE_NAME == "cache" and not is_compiling():  # as the library's own models say it
                warnings.warn("`past_key_values` is deprecated; use `cache`.", FutureWarning, stacklevel=2)
        for name in kwargs.keys() - known:
            if kwargs[name] is not None:
                _check_unknown(self, name, known)
        return forward(self, *args, **kwargs)

    return checked


def _check_unknown(model: PreTrainedModel, name: str, known: Iterable[str]) -> None:
    if _INPUTS.fullmatch(name):
        raise TypeError(f"{type(model).__name__} takes no {name}; leave it out.")
    if name in TransformersKwargs.__annotations__ or name in _PASSED_ON:
        return
    if near := difflib.get_close_matches(name, [*known, *TransformersKwargs.__annotations__], n=1, cutoff=0.8):
        raise TypeError(f"{type(model).__name__} takes no {name}; did you mean {near[0]}?")
    if not is_compiling():
        logger.warning_once(f"{name} is no argument of reluformer's models; the attention function may ignore it.")


class AttentionPreTrainedModel(PreTrainedModel):
    """The base of all models. A subclass names its configuration and, in `auto_map`, the classes that a checkpoint
    serves."""

    config: AttentionConfig
    # The library names only the class that is saved, but a checkpoint of a base model or of a whole one serves both.
    auto_map: ClassVar[dict[str, str]] = {}
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _can_compile_fullgraph = True
    embed_scale = 1.0
    # What a schedule of training puts in the place of `config.ffn_l1_weight`; never saved.
    scheduled_ffn_l1_weight: float | None = None

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GatedRMSNorm):
            init.ones_(module.gate)
        elif isinstance(module, ReLUFormerAttention) and self.config.attention_gamma_learnable:
            init.constant_(module.log_gamma, math.log(self.config.attention_gamma))

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: without it, the library's thread for `generate_batch` would log an error and return empty lists."""
        raise NotImplementedError(
            f"{type(self).__name__} has no paged attention, which generate_batch needs; use generate."
        )

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """As in Transformers. A class that is registered for the Auto classes is saved with its code and the place of
        it."""
        if self._auto_class is not None:
            self.config.auto_map = dict(self.auto_map)
        super().save_pretrained(save_directory, **kwargs)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        """Checked before the library does, which would accept any name registered globally and any kernel of the
        Hub."""
        activation = self.config.attention_activation
        usual = ["eager"] if self.config.output_attentions else valid_attention_implementations(activation)
        requested = attn_implementation or usual[0]
        require_attention_implementation(activation, requested)
        if requested == "fused" and fused_attention_forward is None:
            if attn_implementation is not None:
                raise ImportError("'fused' attention needs the package reluformer: install it, or use 'eager'.")
            logger.info_once("Without the package reluformer, attention is 'eager', with all its weights in memory.")
            return "eager"
        if requested in OWN_IMPLEMENTATIONS:
            return requested
        return super()._check_and_adjust_attn_implementation(requested, *args, **kwargs)

    def _refuse_output_attentions(self, kwargs: Mapping[str, Any]) -> None:
        asked = kwargs.get("output_attentions", self.config.output_attentions)
        if asked and self.config._attn_implementation != "eager":
            raise ValueError(
                f"output_attentions=True needs attn_implementation='eager'; {self.config._attn_implementation!r} never "
                "holds the weights. Call model.set_attn_implementation('eager') first."
            )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, name: str) -> Tensor:
        """Scaled embeddings, (batch, length, hidden_size), of one of both inputs; `name` is `decoder_` or empty."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"Give exactly one of {name}input_ids and {name}inputs_embeds.")
        if input_ids is not None:
            inputs_embeds = self._look_up(input_ids, name)
        elif inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != self.config.hidden_size:
            raise ValueError(
                f"{name}inputs_embeds must have the shape (batch, length, {self.config.hidden_size}); "
                f"got {tuple(inputs_embeds.shape)}."
            )
        return inputs_embeds if self.embed_scale == 1 else inputs_embeds * self.embed_scale

    def _look_up(self, input_ids: Tensor, name: str) -> Tensor:
        if input_ids.ndim != 2 or input_ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"{name}input_ids must be integers (int64 or int32) of the shape (batch, length); "
                f"got {input_ids.dtype} {tuple(input_ids.shape)}."
            )
        try:
            return self.embed_tokens(input_ids)
        except IndexError as error:  # of a CPU, found by the lookup itself: a check before it would cost time
            size, (lowest, highest) = self.embed_tokens.num_embeddings, map(int, input_ids.aminmax())
            raise IndexError(
                f"{name}input_ids holds ids from {lowest} to {highest}; the vocabulary of {size} tokens has 0 to "
                f"{size - 1}."
            ) from error

    @property
    def ffn_l1_weight(self) -> float:
        """The weight of the L1 term of the loss, as `config.ffn_l1_weight` says it or a schedule of training."""
        scheduled = self.scheduled_ffn_l1_weight
        return self.config.ffn_l1_weight if scheduled is None else scheduled

    def _wide_dtype(self) -> torch.dtype:
        """Of sums over rows. Not by `self.dtype`: a replica of DataParallel has no parameters, only tensors."""
        return wide(self.get_input_embeddings().weight.dtype)

    def draw_modules(self) -> ModuleSample | None:
        """Whose regulariser a pass with labels computes; None: that of all attention modules.

        `forward` draws for itself. A loop that compiles the model calls this before each pass in training and gives the
        result as `module_sample`, since a random choice of what is computed cannot be part of a graph.
        """
        if not self._takes_a_share():
            return None
        config = self.config
        check_regularization_share(config, config.attention_modules)  # it may have been changed since
        return ModuleSample.draw(config.regularization_share, config.attention_modules)

    def _takes_a_share(self) -> bool:
        config = self.config
        return self.training and config.regularization_share != 1 and config.regularization_weight != 0

    def _chosen_modules(self, sample: ModuleSample | None) -> ModuleSample | None:
        """The `module_sample` that a forward pass with labels was given, or one that is drawn now."""
        if sample is None:
            return self.draw_modules()
        modules = self.config.attention_modules
        fits = isinstance(sample, ModuleSample) and len(sample.taken) == modules and any(sample.taken)
        if not fits or not self._takes_a_share():
            mode = "training" if self.training else "evaluation, which takes all of them"
            share, weight = self.config.regularization_share, self.config.regularization_weight
            raise ValueError(
                f"module_sample={sample!r} does not fit a model of {modules} attention modules in {mode}, with "
                f"regularization_share={share} and regularization_weight={weight}; give what draw_modules() of this "
                "model has returned for this pass."
            )
        return sample

    def _measured(self, row_weight: Tensor, sample: ModuleSample | None, first_module: int = 0) -> Measured:
        return Measured(row_weight, self._statistics(), self.ffn_l1_weight > 0, sample, first_module)

    def _losses(self, loss_sum: Tensor, items: Tensor | int, outputs: LayerSums) -> dict[str, Tensor]:
        """The result of `regularized_loss` for the sums and norms that the layers returned."""
        # What a schedule sets changes with the updates, and would make losses of evaluation incomparable.
        counts = self.training or self.scheduled_ffn_l1_weight is None
        return regularized_loss(
            loss_sum,
            items,
            outputs.attention_sums,
            statistics=self._statistics(),
            regularization_weight=self.config.regularization_weight,
            regularization_share=self.config.regularization_share if self.training else 1.0,
            ffn_norms=outputs.ffn_norms,
            ffn_l1_weight=self.ffn_l1_weight if counts else 0.0,
        )

    def _statistics(self) -> str:
        """Which row statistics a pass with labels needs: those of the loss, and in evaluation all that can be
        reported."""
        config = self.config
        if (self._tp_size or 1) > 1:
            for name, weight in self._loss_weights().items():
                if weight > 0:
                    raise ValueError(
                        f"{name}={weight} needs all heads and neurons, of which a tensor-parallel process holds some: "
                        "it computes no such loss. Set it to 0, leave labels out, or load the model with tp_size=1."
                    )
            return "none"
        if config.attention_activation not in NON_NEGATIVE:
            return "none"
        return "sum+entropy" if config.regularization_weight > 0 or not self.training else "sum"

    def _loss_weights(self) -> dict[str, float]:
        return {"regularization_weight": self.config.regularization_weight, "ffn_l1_weight": self.ffn_l1_weight}

    def _warn_about_missing_labels(self) -> None:
        for name, weight in self._loss_weights().items():
            if weight > 0 and not is_compiling():
                logger.warning_once(
                    f"A training pass without labels: the model's own loss, and with it the term of {name}={weight}, "
                    "is not computed. The Trainer's label_smoothing_factor does that: leave it at 0 and set "
                    "config.label_smoothing where there is one. So does TRL's SFTTrainer: see docs/decoder.md."
                )

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        # generate() would prepare a dense mask for static caches; the compact one serves every implementation here
        return attention_mask

    def _has_plain_head(self) -> bool:
        """Whether the logits are those of the output layer's weight. What wraps, replaces or hooks the layer (LoRA or
        offloading) computes others, or holds no weight."""
        head = self.lm_head
        is_linear = type(head) is nn.Linear and (self._tp_size or 1) == 1
        return is_linear and "forward" not in vars(head) and not head._forward_hooks and not head._forward_pre_hooks

    def _logits_and_losses(
        self,
        outputs: ModelOutput,
        labels: Tensor | None,
        skip_logits: bool | None,
        num_items_in_batch: Tensor | int | None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The logits (batch, target, vocabulary), None if skipped, and with labels what `regularized_loss` returns."""
        if skip_logits and labels is None:
            raise ValueError("skip_logits=True leaves only the loss, which needs labels; none were given. Give labels.")
        if skip_logits is None:
            skip_logits = self.config.skip_logits and self.training and labels is not None
        hidden_states, smoothing = outputs.last_hidden_state, self.config.label_smoothing
        if labels is not None and labels.shape != hidden_states.shape[:2]:
            shapes = f"for {tuple(hidden_states.shape[:2])} tokens that get logits; got {tuple(labels.shape)}"
            raise ValueError(f"labels need one label for each token, and no logits_to_keep: {shapes}.")
        logits, loss_sum = None, None
        if skip_logits and self._has_plain_head() and vocabulary_loss is not None:
            loss_sum = vocabulary_loss(hidden_states, self.lm_head.weight, labels, bias, smoothing)
        else:
            if skip_logits and not is_compiling():
                logger.warning_once(
                    "skip_logits saves no memory here, all logits are computed for the loss: lm_head, a "
                    f"{type(self.lm_head)}, is no whole nn.Linear or has hooks, or the package reluformer is not "
                    "installed."
                )
            logits = self.lm_head(hidden_states)
            if bias is not None:
                # in place, a step of decoding saves a pass over new memory; autograd and backward hooks need it apart
                add = Tensor.add if logits.requires_grad else Tensor.add_
                logits = add(logits, bias.to(logits))
        if labels is None:
            return logits, {}
        if loss_sum is None:
            loss_sum = cross_entropy_sum(logits, labels.to(logits.device), smoothing)
        items = (labels != IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
        return None if skip_logits else logits, self._losses(loss_sum, items, outputs)
