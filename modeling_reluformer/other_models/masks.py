"""Masks of ReLU attention in other models: what Transformers' mask functions call for `attn_implementation="reluformer"`.

A mask that says "padding" or "padding and causality" is a `VisibilityMask`: a tensor by its shape, without its elements. All
others (sliding windows, chunks, packed sequences, masks of a model's own) are whole boolean tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from ..attention_reluformer import Visibility


class VisibilityMask(Tensor):
    """A boolean mask (batch, 1, queries, keys), True where the key is visible, kept as a `Visibility`.

    Models hand masks on from their stack to their layers. Detached or moved to another device it stays compact; with any other
    operation it becomes the whole tensor. visible_keys: n_i, (batch, queries), float32.
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
    """The mask of `attn_implementation="reluformer"`, in the form of Transformers' mask functions. Never None.

    Args:
        q_length, kv_length: queries and keys. q_offset, kv_offset: position of the first query and of the first key.
        mask_function: what is visible by position; padding comes on top.
        attention_mask: (batch, seen), True for real tokens; keys beyond it are not visible.
        local_size: length of a sliding window or a chunk.
        allow_is_causal_skip: whether `mask_function` is causal within `local_size`, and nothing else.
        allow_is_bidirectional_skip: whether it shows everything within `local_size`.

    Returns:
        A `VisibilityMask`; a boolean tensor (batch, 1, queries, keys) where the mask has no compact form, for a single query,
        whose mask is only a line, and under `torch.compile`.
    """
    # a window or a chunk as long as all that there is hides nothing
    whole = local_size is not None and kv_offset == 0 and isinstance(q_offset, int)
    whole = whole and max(kv_length, q_offset + q_length) <= local_size
    causal = mask_function is causal_mask_function or (allow_is_causal_skip and whole)
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
    visibility = Visibility(_key_padding(attention_mask, batch_size, kv_length, kv_offset), causal, offset)
    return VisibilityMask(visibility, (batch_size, 1, q_length, kv_length), torch.device(device))


def _key_padding(attention_mask: Tensor | None, batch: int, keys: int, first_key: int) -> Tensor | None:
    """(batch, keys), True for real tokens; None where all are."""
    if attention_mask is None:
        return None
    missing = first_key + keys - attention_mask.shape[1]
    if missing > 0:
        attention_mask = torch.nn.functional.pad(attention_mask, (0, missing), value=False)
    mask = attention_mask[:, first_key : first_key + keys].expand(batch, keys)
    return None if mask.all() else mask
