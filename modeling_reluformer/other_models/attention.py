"""ReLU attention for other models: the attention and the masks that Transformers calls for
`attn_implementation="reluformer"`.

A mask that says "padding", "padding and causality", or these within a sliding window, is a `VisibilityMask`: a tensor
by its shape, without its elements. All others (windows on both sides, chunks, packed sequences, masks of a model's own)
are whole boolean tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
    sliding_window_overlay,
)
from transformers.utils import is_torchdynamo_compiling, logging

from ..attention_reluformer import Visibility
from ..fused.module import AttentionSettings, attend_visible
from ..loss_reluformer import row_entropy, row_penalty
from . import ATTENTION_NAME
from .regularization import collect, collects

logger = logging.get_logger(__name__)

# Arguments that need a softmax, a score below which there is weight, or an attention of the library.
REFUSED = ("softcap", "s_aux", "sinks", "position_bias", "head_mask", "cache", "indices", "block_indices")


# For `_window_of`, of any window.
_SLIDING_CAUSAL, _SLIDING = sliding_window_causal_mask_function(1), sliding_window_overlay(1)


class RefusedByAttentionError(ValueError):
    """A model gives its attention what a point-wise one cannot compute."""


class VisibilityMask(Tensor):
    """A boolean mask (batch, 1, queries, keys), True where the key is visible, kept as a `Visibility`.

    Models hand masks on from their stack to their layers. Detached or moved to another device it stays compact; with
    any other operation it becomes the whole tensor. visible_keys: n_i, (batch, queries), float32.
    """

    visibility: Visibility
    visible_keys: Tensor

    @staticmethod
    def __new__(cls, visibility: Visibility, shape: Sequence[int], device: torch.device) -> VisibilityMask:
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.visibility = visibility
        mask.visible_keys = visibility.count(shape[0], *shape[2:], device)
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return arguments[0]._on(arguments[0].device)
        if function is torch.ops.aten._to_copy.default and keywords.get("dtype", torch.bool) == torch.bool:
            return arguments[0]._on(keywords.get("device") or arguments[0].device)
        if function._schema.is_mutable and arguments and isinstance(arguments[0], cls):
            raise RuntimeError(f"{function} would write into a mask that has no elements; write into mask.clone().")
        arguments, keywords = tree_map_only(cls, cls.dense, (arguments, keywords))
        return function(*arguments, **keywords)

    def dense(self) -> Tensor:
        """The whole mask, an ordinary tensor."""
        dense = self.visibility.dense(*self.shape[2:], self.device)
        return (
            torch.ones(self.shape, dtype=torch.bool, device=self.device) if dense is None else dense.expand(self.shape)
        )

    def _on(self, device: torch.device) -> VisibilityMask:
        """The same on a device."""
        moved = {name: part.to(device) for name, part in vars(self.visibility).items() if isinstance(part, Tensor)}
        return VisibilityMask(replace(self.visibility, **moved), tuple(self.shape), torch.device(device))


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
        query: (batch, heads, queries, head_dim). key, value: (batch, key_heads, keys, head_dim); heads share keys in
            groups.
        attention_mask: what `relu_attention_mask` gave, or a boolean mask that broadcasts to (batch, heads, queries,
            keys).
        scaling: of the scores; default 1/sqrt(head_dim). dropout: of the weights.
        is_causal: read only where there is no mask.
        output_attentions: whether weights are wanted, which the reference computes.

    Returns:
        The output (batch, queries, heads, head_dim) and the weights before dropout (batch, heads, queries, keys), or
        None.

    Raises:
        RefusedByAttentionError: an argument of `REFUSED`, an additive mask, a mask of another shape. TypeError: an
            unknown setting. ValueError: a bad setting; a regulariser that no model collects, see `collects`.
    """
    for name in REFUSED:
        if kwargs.get(name) is not None:
            raise RefusedByAttentionError(
                f"{type(module).__name__} gives its attention {name!r}, which point-wise attention does not compute; "
                "load this model with 'eager' or 'sdpa'."
            )
    settings = _settings_of(module)
    query, key = query.to(value.dtype), key.to(value.dtype)
    if attention_mask is None:
        attention_mask = _without_mask(module, query, key, is_causal)
    visibility, visible_keys = _read_mask(attention_mask, query, key)
    result = attend_visible(
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
    if result.row_sum is not None:
        entropy = row_entropy(result.row_sum, result.row_sum_log)
        penalty = row_penalty(result.row_sum, entropy, visible_keys, settings.entropy_margin)
        collect(module, penalty, _real_rows(visibility, query.shape[2], key.shape[2]))
    return result.output.transpose(1, 2).contiguous(), result.weights


def _settings_of(module: nn.Module) -> AttentionSettings:
    """The settings in the config of an attention module; without settings the defaults, with one warning for a kind of
    config."""
    config = getattr(module, "config", None)
    settings = getattr(config, ATTENTION_NAME, None)
    if settings is None and not is_torchdynamo_compiling():
        logger.warning_once(
            f"{type(module if config is None else config).__name__} holds no settings under the key "
            f"{ATTENTION_NAME!r}: attn_implementation={ATTENTION_NAME!r} computes the defaults, {AttentionSettings()}. "
            "`use_relu_attention` writes them, and saves them with the model."
        )
    return AttentionSettings.of(settings or {})


def _without_mask(module: nn.Module, query: Tensor, key: Tensor, is_causal: bool | None) -> Tensor:
    """The mask of a model that made none: by the library's rule, causal where the module says so, else all visible."""
    queries, keys = query.shape[2], key.shape[2]
    causal = queries > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if causal and queries != keys:
        raise RefusedByAttentionError(
            f"{type(module).__name__} is causal and gives no mask for {queries} queries and {keys} keys: which keys "
            "come before which query is not known."
        )
    return VisibilityMask(Visibility(causal=causal), (query.shape[0], 1, queries, keys), query.device)


def _read_mask(mask: Tensor, query: Tensor, key: Tensor) -> tuple[Visibility, Tensor]:
    """What a mask makes visible, and n_i, (batch or 1, heads or 1, queries or 1)."""
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    allowed = (1, batch), (1, heads), (1, queries), (keys,)  # no sets: torch.export has sizes without a hash
    fits = mask.ndim == 4 and all(size in sizes for size, sizes in zip(mask.shape, allowed, strict=True))
    if not fits or mask.dtype != torch.bool:
        raise RefusedByAttentionError(
            f"attn_implementation={ATTENTION_NAME!r} needs a boolean mask, True where the key is visible, that "
            f"broadcasts to (batch, heads, queries, keys) = ({batch}, {heads}, {queries}, {keys}); got {mask.dtype} "
            f"{tuple(mask.shape)}. "
            "Additive masks do not work with point-wise activations: where you gave none, the model makes one, so load "
            "it with 'eager' or 'sdpa'."
        )
    if isinstance(mask, VisibilityMask):
        return mask.visibility, mask.visible_keys.unsqueeze(1)
    visible_keys = mask.sum(-1).clamp_min(1).float()
    if mask.shape[1:3] == (1, 1):
        return Visibility(mask[:, 0, 0].expand(batch, keys)), visible_keys
    if not is_torchdynamo_compiling():
        logger.warning_once(
            "This mask differs from query to query in a way that has no compact form (a window on both sides or a "
            "chunk that is shorter than the text, packed sequences, a mask of the model's own): "
            f"attn_implementation={ATTENTION_NAME!r} computes it by the reference, with all weights in memory."
        )
    return Visibility(given_mask=mask), visible_keys


def _real_rows(visibility: Visibility, queries: int, keys: int) -> Tensor | None:
    """Which queries of a self-attention are tokens, (batch or 1, queries): those that are tokens as keys. None: all
    are."""
    if visibility.given_mask is not None:
        return visibility.given_mask.any(dim=(1, 2)) if queries == keys else None
    mask = visibility.key_padding_mask
    if mask is None or (queries != keys and not visibility.causal):
        return None
    positions = torch.arange(queries, device=mask.device)
    return mask[:, positions + visibility.query_offset] if visibility.causal else mask


def relu_attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor:
    """The mask of `attn_implementation="reluformer"`, with the arguments of `transformers.masking_utils.sdpa_mask`.
    Never None.

    attention_mask: (batch, seen), True for real tokens; keys beyond it are not visible. allow_is_causal_skip: whether
    `mask_function` is causal within `local_size`, and nothing else. allow_is_bidirectional_skip: whether it shows
    everything within `local_size`.

    Returns:
        A `VisibilityMask`; a boolean tensor (batch, 1, queries, keys) where the mask has no compact form, for a single
        query, whose mask is only a line, and under `torch.compile`.
    """
    # a window or a chunk as long as all that there is hides nothing
    whole = local_size is not None and kv_offset == 0 and isinstance(q_offset, int)
    whole = whole and max(kv_length, q_offset + q_length) <= local_size
    causal = mask_function is causal_mask_function or (allow_is_causal_skip and whole)
    window = None if causal else _window_of(mask_function)
    causal = causal or window is not None
    both_ways = mask_function is bidirectional_mask_function or (allow_is_bidirectional_skip and whole)
    if q_length == 1 or not (causal or both_ways) or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=kwargs.get("use_vmap", False),
            device=device,
        )
    # a difference, not `q_offset` itself: a static cache counts on in the tensor that it gives
    offset = q_offset - kv_offset if causal else 0
    padding = _key_padding(attention_mask, batch_size, kv_length, kv_offset)
    visibility = Visibility(padding, causal, offset, window=window)
    return VisibilityMask(visibility, (batch_size, 1, q_length, kv_length), torch.device(device))


def _window_of(mask_function: Callable) -> int | None:
    """The window of the library's causal mask with a sliding window; None of any other mask.

    The library builds it from two functions, whose code shows which they are.
    """
    if getattr(mask_function, "__code__", None) is not _SLIDING_CAUSAL.__code__:
        return None
    first, *others = inspect.getclosurevars(mask_function).nonlocals["mask_functions"]
    if others != [causal_mask_function] or first.__code__ is not _SLIDING.__code__:
        return None
    return inspect.getclosurevars(first).nonlocals["sliding_window"]


def _key_padding(attention_mask: Tensor | None, batch: int, keys: int, first_key: int) -> Tensor | None:
    """(batch, keys), True for real tokens; None where all are."""
    if attention_mask is None:
        return None
    missing = first_key + keys - attention_mask.shape[1]
    if missing > 0:
        attention_mask = torch.nn.functional.pad(attention_mask, (0, missing), value=False)
    mask = attention_mask[:, first_key : first_key + keys].expand(batch, keys)
    return None if not mask.is_meta and mask.all() else mask
