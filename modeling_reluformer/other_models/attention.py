"""ReLU attention for other models: what Transformers calls for `attn_implementation="reluformer"`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import is_torchdynamo_compiling, logging

from ..attention_reluformer import Visibility
from ..fused.visible_attention import AttentionSettings, attend_visible
from . import ATTENTION_NAME
from .masks import VisibilityMask
from .regularization import collect, collects

logger = logging.get_logger(__name__)

# Arguments that need a softmax, a score below which there is weight, or an attention of the library.
REFUSED = ("softcap", "s_aux", "sinks", "position_bias", "head_mask", "cache")


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
        output_attentions: whether weights are wanted, which the reference computes.

    Returns:
        The output (batch, queries, heads, head_dim) and the weights before dropout (batch, heads, queries, keys), or None.

    Raises:
        ValueError: an argument of `REFUSED`, an additive mask, a mask of another shape, a bad setting; a regulariser that no
            model collects, see `collects`.
    """
    for name in REFUSED:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} gives its attention {name!r}, which point-wise attention does not compute; load this "
                "model with 'eager' or 'sdpa'."
            )
    settings = _settings_of(module)
    query, key = query.to(value.dtype), key.to(value.dtype)
    if attention_mask is None:
        attention_mask = _without_mask(module, query, key, is_causal)
    visibility, visible_keys = _read_mask(attention_mask, query, key)
    found = attend_visible(
        query,
        key,
        value,
        visibility,
        visible_keys,
        settings,
        scale=scaling,
        dropout_p=dropout,
        statistics="sum+entropy" if collects(module, settings.regularization_weight) else "none",
        weights_wanted=bool(output_attentions),
    )
    if found.row_sum is not None:
        real_rows = _real_rows(visibility, query.shape[2], key.shape[2])
        collect(module, found, visible_keys, real_rows, settings.entropy_margin)
    return found.output.transpose(1, 2).contiguous(), found.weights


def _settings_of(module: nn.Module) -> AttentionSettings:
    """The settings in the config of an attention module; without settings the defaults, with one warning for a kind of config."""
    config = getattr(module, "config", None)
    settings = getattr(config, ATTENTION_NAME, None)
    if settings is None and not is_torchdynamo_compiling():
        logger.warning_once(
            f"{type(module if config is None else config).__name__} holds no settings under the key {ATTENTION_NAME!r}: "
            f"attn_implementation={ATTENTION_NAME!r} computes the defaults, {AttentionSettings()}. `use_relu_attention` writes "
            "them, and saves them with the model."
        )
    return AttentionSettings(**(settings or {}))


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
    if not is_torchdynamo_compiling():
        logger.warning_once(
            "This mask differs from query to query in a way that has no compact form (a sliding window shorter than the text, "
            f"packed sequences, a mask of the model's own): attn_implementation={ATTENTION_NAME!r} computes it by the reference, "
            "with all weights in memory."
        )
    return Visibility(given_mask=mask), visible_keys


def _real_rows(visibility: Visibility, queries: int, keys: int) -> Tensor | None:
    """Which queries of a self-attention are tokens, (batch or 1, queries): those that are tokens as keys. None: all are."""
    if visibility.given_mask is not None:
        return visibility.given_mask.any(dim=(1, 2)) if queries == keys else None
    mask = visibility.key_padding_mask
    if mask is None or (queries != keys and not visibility.causal):
        return None
    places = torch.arange(queries, device=mask.device)
    return mask[:, places + visibility.query_offset] if visibility.causal else mask
