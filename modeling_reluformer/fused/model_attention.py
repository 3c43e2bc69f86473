"""What a model takes from the package: `attn_implementation="fused"`, and generation whose beams share their source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from ..attention_reluformer import Visibility
from .attention import attend
from .specification import Specification


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
    """`relu_attention`: point-wise activations without a queries × keys tensor. As `eager_attention_forward`, without
    weights.

    Raises:
        ValueError: a whole mask was given.
    """
    if visibility.given_mask is not None:
        raise ValueError(
            "attn_implementation='fused' keeps no queries × keys tensor and takes no four-dimensional mask; give "
            "(batch, keys) with 1 for real tokens, or use attn_implementation='eager'."
        )
    # autocast leaves the result of a norm in float32: the products follow the values, as the library's attention does
    if not query.dtype == key.dtype == value.dtype:
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
        # a model's own copy of the code may predate this field
        window=getattr(visibility, "window", None),
        dropout_p=dropout,
        statistics=statistics,
    )
    if visibility.query_segments is None:
        results = attend(query, key, value, specification)
    else:
        results = _packed_attention(query, key, value, visibility, specification)
    output, row_sum, row_sum_log = (*results, None, None)[:3]
    return output.transpose(1, 2), None, row_sum, row_sum_log


def _packed_attention(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, specification: Specification
) -> tuple[Tensor, ...]:
    """`attend` within the segments of `visibility`; shapes and results as there.

    It takes packed sequences as one row, with the places where each of them starts. Padding, which is segment 0, sees
    the padding that the mask does not hide; nobody reads those rows.
    """
    batch, row_scale, mask = query.shape[0], specification.row_scale, specification.key_padding_mask
    # a model's own copy of the code may predate this field
    query_ends, key_ends = getattr(visibility, "cu_seqlens", None) or Visibility.segment_ends(visibility)
    packed = replace(
        specification,
        row_scale=None if row_scale is None else row_scale.transpose(0, 1).flatten(1).unsqueeze(0),
        key_padding_mask=None if mask is None else mask.expand(batch, -1).reshape(1, -1),
        cu_seqlens_q=query_ends,
        cu_seqlens_k=key_ends,
    )
    in_one_row = (states.transpose(0, 1).flatten(1, 2).unsqueeze(0) for states in (query, key, value))
    results = attend(*in_one_row, packed)
    return tuple(item[0].unflatten(1, (batch, query.shape[2])).transpose(0, 1) for item in results)


class SharedSources:
    """A mixin before `GenerationMixin`: the source's keys and values are held once for all its beams, and read once a
    step."""

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As in Transformers, but the source is not repeated for its beams or samples: see `targets_per_source`.

        It is repeated where the caller gave a cache, which may hold its keys for each of them.
        """
        if expand_size == 1 or any(model_kwargs.get(name) is not None for name in ("cache", "past_key_values")):
            return super()._expand_inputs_for_generation(expand_size, is_encoder_decoder, input_ids, **model_kwargs)
        source = {name: model_kwargs.pop(name, None) for name in ("encoder_outputs", "attention_mask")}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **model_kwargs)
        return input_ids, {**model_kwargs, **source, "targets_per_source": expand_size}

    def _reorder_cache(self, cache: Cache, beam_idx: Tensor) -> Cache:
        """The beams of a sentence share its source, so only what they have written themselves changes places."""
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache
