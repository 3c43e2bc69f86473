"""The switch: how attention is computed. It holds the names, the masks that each of them needs, and one call for all.

`ALL_ATTENTION_FUNCTIONS` is an instance of its own: it adds `eager` and `fused` for this model alone and leaves the
library's global registry as it is. Which names a model may use depends on its activation: see
`valid_attention_implementations`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.utils import is_torchdynamo_compiling, logging

from .attention_reference import AttentionResult, reference_attention
from .regularization_reluformer import DEFAULT_ENTROPY_MARGIN
from .visibility_reluformer import Visibility, scale_of_rows, segments_that_return, wide

try:  # a copy of these files on the Hub takes the fused paths from the installed package
    from reluformer.modeling_reluformer.fused.attention import attend
    from reluformer.modeling_reluformer.fused.specification import Specification
except ModuleNotFoundError as error:
    if error.name != "reluformer":
        raise
    attend = None

OWN_IMPLEMENTATIONS = ("eager", "fused")
logger = logging.get_logger(__name__)


def default_implementation(preferred: str) -> str:
    """`preferred`; without the package, "eager" in place of "fused", and a line says so once."""
    if preferred != "fused" or attend is not None:
        return preferred
    logger.info_once(
        "The package reluformer is not installed: attention is computed with attn_implementation='eager', which keeps all its "
        "weights in memory. The package brings 'fused'."
    )
    return "eager"


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
    """The reference, for every activation. Returns the output (batch, queries, heads, head_dim), the weights, S and T."""
    result = reference_attention(
        query,
        key,
        value,
        activation=module.activation,
        mask=visibility.dense(query.shape[2], key.shape[2], query.device),
        row_scale=row_scale,
        scale=scaling,
        dropout_p=dropout,
        statistics=statistics,
    )
    return _heads_last(result)


def fused_attention_forward(
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
) -> tuple[Tensor, None, Tensor | None, Tensor | None]:
    """`relu_attention`: point-wise activations without a queries × keys tensor. As `eager_attention_forward`, without weights.

    Raises:
        ValueError: a whole mask was given, or packed sequences are not numbered in the order in which they stand.
        ImportError: the package is not installed.
    """
    if attend is None:
        raise ImportError("attn_implementation='fused' needs the package reluformer: install it, or use 'eager'.")
    if visibility.given_mask is not None:
        raise ValueError(
            "attn_implementation='fused' keeps no queries × keys tensor and takes no four-dimensional mask; give "
            "(batch, keys) with 1 for real tokens, or use attn_implementation='eager'."
        )
    # autocast leaves the result of a norm in float32: the products follow the values, as the library's attention does
    query, key = query.to(value.dtype), key.to(value.dtype)
    offset = visibility.query_offset
    specification = Specification(
        row_scale=row_scale,
        key_padding_mask=visibility.key_padding_mask,
        offset=offset if isinstance(offset, Tensor) else None,
        activation=module.activation,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        causal=visibility.causal,
        query_offset=0 if isinstance(offset, Tensor) else offset,
        dropout_p=dropout,
        statistics=statistics,
    )
    if visibility.query_segments is None:
        found = attend(query, key, value, specification)
    else:
        found = _packed_attention(query, key, value, visibility, specification)
    output, *sums = found
    row_sum, row_sum_log = [*sums, None, None][:2]
    return _heads_last(AttentionResult(output, None, row_sum, row_sum_log))


def _packed_attention(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, specification: Specification
) -> tuple[Tensor, ...]:
    """`attend` within the segments of `visibility`; shapes and results as there.

    It takes packed sequences as one row, with the places where each of them starts. Padding, which is segment 0, sees the
    padding that the mask does not hide; nobody reads those rows.
    """
    batch = query.shape[0]
    ends = _sequence_ends(visibility.query_segments, visibility.key_segments)
    row_scale, mask = specification.row_scale, specification.key_padding_mask
    if row_scale is not None:
        row_scale = row_scale.transpose(0, 1).flatten(1).unsqueeze(0)
    if mask is not None:
        mask = mask.expand(batch, -1).reshape(1, -1)
    packed = replace(
        specification, row_scale=row_scale, key_padding_mask=mask, cu_seqlens_q=ends[0], cu_seqlens_k=ends[1]
    )
    found = attend(*map(_in_one_row, (query, key, value)), packed)
    return tuple(item[0].unflatten(1, (batch, query.shape[2])).transpose(0, 1) for item in found)


def _sequence_ends(query_segments: Tensor, key_segments: Tensor) -> tuple[Tensor, Tensor]:
    """Segment numbers (batch, queries) and (batch, keys) → `cu_seqlens` of both, int32, over the rows laid end to end.

    Every number that either side of a row has is a sequence, empty on the side that lacks it.

    Raises:
        ValueError: the numbers of a row do not rise (0, padding, may stand at either end).
    """
    count = int(torch.maximum(query_segments.max(), key_segments.max())) + 1
    padded_first = bool((query_segments[:, 0] == 0).any() | (key_segments[:, 0] == 0).any())
    lengths = []
    for name, segments in (("query", query_segments), ("key", key_segments)):
        order = segments if padded_first else torch.where(segments == 0, count, segments)
        if (order.diff(dim=1) < 0).any():
            raise ValueError(
                f"Packed sequences must be numbered in the order in which they stand, padding (0) at one end of all rows; "
                f"the {name} segments are {segments.tolist()}."
            )
        order = order if padded_first else order - 1
        lengths.append(torch.stack([torch.bincount(row, minlength=count) for row in order.long()]).flatten())
    starts = (torch.nn.functional.pad(length.cumsum(0), (1, 0)).int() for length in lengths)
    return tuple(starts)


def _in_one_row(tensor: Tensor) -> Tensor:
    """(batch, heads, length, features) → (1, heads, batch · length, features)."""
    return tensor.transpose(0, 1).flatten(1, 2).unsqueeze(0)


ALL_ATTENTION_FUNCTIONS = AttentionInterface()
ALL_ATTENTION_FUNCTIONS["eager"] = eager_attention_forward
ALL_ATTENTION_FUNCTIONS["fused"] = fused_attention_forward


def _heads_last(result: AttentionResult) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    return result.output.transpose(1, 2), result.weights, result.row_sum, result.row_sum_log


def attention_visibility(
    attention_mask: Tensor | None,
    *,
    batch: int,
    queries: int,
    keys: int,
    causal: bool = False,
    query_offset: int | Tensor = 0,
    query_segments: Tensor | None = None,
    key_segments: Tensor | None = None,
) -> Visibility:
    """Reads a mask as users give it.

    Args:
        attention_mask: None, (batch, keys) with 1 for real tokens, or a whole boolean (batch, 1, queries, keys).
            A causal (batch, seen) mask may be shorter than a static cache; keys that were not written yet are not visible.

    Raises:
        ValueError: a mask of another shape; a four-dimensional mask that is not boolean or comes with segments; a mask with
            values other than 0 and 1; segments that do not fit queries and keys, as with a cache.
    """
    _check_segments(query_segments, key_segments, (batch, queries), (batch, keys))
    if attention_mask is None:
        return Visibility(None, causal, query_offset, query_segments, key_segments)
    if attention_mask.ndim == 4:
        if attention_mask.dtype != torch.bool:
            raise ValueError(
                f"A four-dimensional attention mask must be boolean, True where the key is visible; got {attention_mask.dtype}. "
                "Additive masks do not work with point-wise activations."
            )
        if attention_mask.shape[0] not in (1, batch) or attention_mask.shape[1:] != (1, queries, keys):
            raise _wrong_shape(attention_mask, batch, queries, keys)
        if query_segments is not None:
            raise ValueError(
                f"A four-dimensional attention mask {tuple(attention_mask.shape)} and segment ids were given; the mask says "
                "all about what each query sees. Give one of them, or segment ids with a (batch, keys) mask."
            )
        return Visibility(given_mask=attention_mask)
    seen = attention_mask.shape[1] if attention_mask.ndim == 2 and attention_mask.shape[0] == batch else None
    if seen is None or seen > keys or (seen < keys and not causal):
        raise _wrong_shape(attention_mask, batch, queries, keys)
    _check_values(attention_mask)
    mask = attention_mask.bool()
    if mask.shape[1] < keys:
        mask = nn.functional.pad(mask, (0, keys - mask.shape[1]), value=False)
    return Visibility(mask, causal, query_offset, query_segments, key_segments)


def _check_segments(
    query_segments: Tensor | None, key_segments: Tensor | None, queries: tuple[int, int], keys: tuple[int, int]
) -> None:
    for name, segments, shape in (("queries", query_segments, queries), ("keys", key_segments, keys)):
        if segments is None:
            continue
        if segments.shape != shape:
            raise ValueError(
                f"The segment ids of the {name} must have the shape (batch, {name}) = {shape}; got {tuple(segments.shape)}. "
                "Packed sequences do not go with a cache that holds earlier tokens: pass them whole."
            )
        integers = segments.dtype in (torch.int64, torch.int32)
        looked_at = integers and segments.device.type == "cpu" and not is_torchdynamo_compiling()
        if not integers or (looked_at and bool((segments < 0).any())):
            found = f"the lowest is {int(segments.min())}" if integers else f"got {segments.dtype}"
            raise ValueError(
                f"The segment ids of the {name} must be integers (int64 or int32), the numbers of packed sequences from 1, and 0 "
                f"for padding; {found}."
            )
        if looked_at and (wrong := segments_that_return(segments)).any():
            raise ValueError(
                f"The segment ids of the {name} must have equal numbers side by side, one run for each packed sequence; got "
                f"{segments[wrong][0].tolist()}. Number every sequence of a row by itself."
            )


def _wrong_shape(mask: Tensor, batch: int, queries: int, keys: int) -> ValueError:
    return ValueError(
        f"An attention mask must have the shape (batch, keys) = ({batch}, {keys}) or (batch, 1, queries, keys) = "
        f"({batch}, 1, {queries}, {keys}); got {tuple(mask.shape)}."
    )


def _check_values(mask: Tensor) -> None:
    """Refuses additive masks, which are 0 where the key is visible and would be read the wrong way round.

    Most additive masks are floating-point. Masks of integers, which tokenizers give, are checked only on a CPU: the check
    would have to wait for another device.
    """
    if mask.dtype == torch.bool or is_torchdynamo_compiling():
        return
    if not mask.is_floating_point() and mask.device.type != "cpu":
        return
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError(
            "A two-dimensional attention mask holds 1 for real tokens and 0 for padding; this one has other values. "
            "Additive masks do not work with point-wise activations."
        )


def library_mask(
    config: Any,
    visibility: Visibility,
    inputs_embeds: Tensor,
    *,
    attention_mask: Tensor | None,
    encoder_hidden_states: Tensor | None = None,
    cache: Any = None,
) -> Tensor | None:
    """The mask that the library's own functions (`sdpa`, `flash_attention_*`) take; None for this package's own."""
    if config._attn_implementation in OWN_IMPLEMENTATIONS:
        return None
    if visibility.given_mask is not None:
        return visibility.given_mask
    if visibility.query_segments is not None:
        if config._attn_implementation != "sdpa":
            raise ValueError(
                f"Packed sequences need attn_implementation 'sdpa', 'eager' or 'fused', not {config._attn_implementation!r}."
            )
        return visibility.dense(
            visibility.query_segments.shape[1], visibility.key_segments.shape[1], inputs_embeds.device
        )
    if visibility.causal:
        return create_causal_mask(config, inputs_embeds, attention_mask, cache)
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        encoder_hidden_states=encoder_hidden_states,
    )


@dataclass(frozen=True)
class AttentionContext:
    """What all attention modules of one kind (encoder self, decoder self, cross) share in one forward pass.

    attend: the attention function, by the switch. visibility: which keys each query sees. mask: the same for the library's own
    functions.
    visible_keys: n_i, (batch, queries). row_scale: r_i of Eq. 6 (or of the length scaling), (batch, 1, queries), float32 or
    float64, without gamma where that is learned, which differs from layer to layer; None for 1.
    row_weight: (batch, queries), see `row_weights`; None where no figures are wanted.
    statistics: "none" | "sum" | "sum+entropy".
    rotation: cosines and sines of rotary positions, (batch or 1, queries, head_dim) each; None where there are none.
    entropy_margin: of Eq. 7.
    """

    attend: Callable[..., Any]
    visibility: Visibility
    mask: Tensor | None
    visible_keys: Tensor
    row_scale: Tensor | None
    row_weight: Tensor | None = None
    statistics: str = "none"
    rotation: tuple[Tensor, Tensor] | None = None
    entropy_margin: float = DEFAULT_ENTROPY_MARGIN

    def to(self, device: torch.device, non_blocking: bool = False) -> AttentionContext:
        """A copy on another device: a model spread over devices by `device_map` moves its inputs by this name."""

        def move(item: Any) -> Any:
            if isinstance(item, Tensor):
                return item.to(device, non_blocking=non_blocking)
            if isinstance(item, tuple):
                return tuple(map(move, item))
            if isinstance(item, Visibility):
                return replace(item, **{field.name: move(getattr(item, field.name)) for field in fields(item)})
            return item

        return replace(self, **{field.name: move(getattr(self, field.name)) for field in fields(self)})


def attention_context(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    *,
    keys: int,
    causal: bool = False,
    query_offset: int | Tensor = 0,
    query_segments: Tensor | None = None,
    key_segments: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    cache: Any = None,
    row_weight: Tensor | None = None,
    statistics: str = "none",
    rotation: tuple[Tensor, Tensor] | None = None,
) -> AttentionContext:
    """Masks, visible-key counts and row scales, once for all layers of a stack. `keys` is the length of the key tensors."""
    batch, queries = inputs_embeds.shape[:2]
    visibility = attention_visibility(
        attention_mask,
        batch=batch,
        queries=queries,
        keys=keys,
        causal=causal,
        query_offset=query_offset,
        query_segments=query_segments,
        key_segments=key_segments,
    )
    mask = library_mask(
        config,
        visibility,
        inputs_embeds,
        attention_mask=attention_mask,
        encoder_hidden_states=encoder_hidden_states,
        cache=cache,
    )
    visible_keys = visibility.count(batch, queries, keys, inputs_embeds.device).to(wide(inputs_embeds.dtype))
    row_scale = scale_of_rows(
        visible_keys.unsqueeze(1),
        config.attention_scaling,
        gamma=None if config.attention_gamma_learnable else config.attention_gamma,
        alpha=config.attention_alpha,
    )
    # looked up here, once: reading a configuration takes a layer that decodes one token longer than its attention
    interface = ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager_attention_forward)
    return AttentionContext(
        interface, visibility, mask, visible_keys, row_scale, row_weight, statistics, rotation, config.entropy_margin
    )
