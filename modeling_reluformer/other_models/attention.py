"""ReLU attention for other models: what Transformers calls for `attn_implementation="reluformer"`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import is_torchdynamo_compiling, logging

from ..attention_reluformer import AttentionResult, Visibility, reference_attention, scale_of_rows, wide
from ..fused.attention import relu_attention
from .masks import VisibilityMask
from .regularization import collect, collects
from .settings import ATTENTION_NAME, settings_of
from .support import REFUSED, refuse_argument

logger = logging.get_logger(__name__)


def relu_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    output_attentions: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as Transformers' models call it, with the settings that `module.config.reluformer` holds.

    Args:
        query: (batch, heads, queries, head_dim). key, value: (batch, key_heads, keys, head_dim); heads share keys in groups.
        attention_mask: what `relu_attention_mask` gave, or a boolean mask that broadcasts to (batch, heads, queries, keys).
        scaling: of the scores; default 1/sqrt(head_dim). dropout: of the weights.
        is_causal: read only where there is no mask.
        output_attentions: whether weights are wanted. With `implementation` "auto", the reference then computes them.

    Returns:
        The output (batch, queries, heads, head_dim) and the weights before dropout (batch, heads, queries, keys), or None.

    Raises:
        ValueError: an argument of `REFUSED`, an additive mask, a mask of another shape, a bad setting; a regulariser that no
            model collects, see `collects`.
    """
    for name in REFUSED:
        if kwargs.get(name) is not None:
            refuse_argument(module, name)
    settings = settings_of(module)
    query, key = query.to(value.dtype), key.to(value.dtype)
    if attention_mask is None:
        attention_mask = _without_mask(module, query, key, is_causal)
    visibility, visible_keys = _read_mask(attention_mask, query, key)
    visible_keys = visible_keys.to(wide(query.dtype))
    row_scale = scale_of_rows(visible_keys, settings.scaling, gamma=settings.gamma, alpha=settings.alpha)
    arguments = {
        "row_scale": None if row_scale is None else row_scale.expand(query.shape[0], -1, query.shape[2]),
        "activation": settings.activation,
        "scale": scaling,
        "dropout_p": dropout,
        "statistics": "sum+entropy" if collects(module, settings.regularization_weight) else "none",
    }
    if settings.implementation == "eager" or _needs_reference(visibility, bool(output_attentions)):
        mask = visibility.dense(query.shape[2], key.shape[2], query.device)
        found = reference_attention(query, key, value, mask=mask, **arguments)
    else:
        found = _fused(query, key, value, visibility, arguments)
    if found.row_sum is not None:
        real_rows = _real_rows(visibility, query.shape[2], key.shape[2])
        collect(module, found, visible_keys, real_rows, settings.entropy_margin)
    return found.output.transpose(1, 2).contiguous(), found.weights


def _without_mask(module: nn.Module, query: Tensor, key: Tensor, is_causal: bool | None) -> Tensor:
    """The mask of a model that made none: by the library's rule, causal where the module says so, else all visible."""
    queries, keys = query.shape[2], key.shape[2]
    causal = queries > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if causal and queries != keys:
        raise ValueError(
            f"{type(module).__name__} is causal and gives no mask for {queries} queries and {keys} keys: which keys come "
            "before which query is not known."
        )
    return VisibilityMask(Visibility(causal=causal), (query.shape[0], 1, queries, keys), query.device)


def _read_mask(mask: Tensor, query: Tensor, key: Tensor) -> tuple[Visibility, Tensor]:
    """What a mask makes visible, and n_i, (batch or 1, heads or 1, queries or 1)."""
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    allowed = {1, batch}, {1, heads}, {1, queries}, {keys}
    fits = mask.ndim == 4 and all(size in sizes for size, sizes in zip(mask.shape, allowed, strict=True))
    if not fits or mask.dtype != torch.bool:
        raise ValueError(
            f"attn_implementation={ATTENTION_NAME!r} needs a boolean mask, True where the key is visible, that broadcasts to "
            f"(batch, heads, queries, keys) = ({batch}, {heads}, {queries}, {keys}); got {mask.dtype} {tuple(mask.shape)}. "
            "Additive masks do not work with point-wise activations."
        )
    if isinstance(mask, VisibilityMask):
        return mask.visibility, mask.visible_keys.unsqueeze(1)
    visible_keys = mask.sum(-1).clamp_min(1).float()
    if mask.shape[1:3] == (1, 1):
        return Visibility(mask[:, 0, 0].expand(batch, keys)), visible_keys
    return Visibility(given_mask=mask), visible_keys


def _needs_reference(visibility: Visibility, weights_wanted: bool) -> bool:
    if visibility.given_mask is None:
        return weights_wanted
    if not is_torchdynamo_compiling():
        logger.warning_once(
            "This mask differs from query to query in a way that has no compact form (a sliding window shorter than the text, "
            f"packed sequences, a mask of the model's own): attn_implementation={ATTENTION_NAME!r} computes it by the reference, "
            "with all weights in memory."
        )
    return True


def _fused(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, arguments: dict[str, Any]
) -> AttentionResult:
    seen = {name: getattr(visibility, name) for name in ("causal", "key_padding_mask", "query_offset")}
    found = relu_attention(query, key, value, scaling="none", **seen, **arguments)
    output, *sums = found if isinstance(found, tuple) else (found,)
    return AttentionResult(output, None, *sums)


def _real_rows(visibility: Visibility, queries: int, keys: int) -> Tensor | None:
    """Which queries of a self-attention are tokens, (batch or 1, queries): those that are tokens as keys. None: all are."""
    if visibility.given_mask is not None:
        return visibility.given_mask.any(dim=(1, 2)) if queries == keys else None
    mask = visibility.key_padding_mask
    if mask is None or (queries != keys and not visibility.causal):
        return None
    places = torch.arange(queries, device=mask.device)
    return mask[:, places + visibility.query_offset] if visibility.causal else mask
