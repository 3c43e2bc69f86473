"""Tokens as a stack of layers takes them: the checks of ids and embeddings, the lookup, and the position of each token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.utils import is_torchdynamo_compiling

from .visibility_reluformer import positions_from_padding, positions_from_segments

_RAISE_IT = "raise that number in the config (positions are not trained)"


def require_token_ids(input_ids: Tensor, name: str) -> None:
    """Raises a `ValueError` unless `input_ids` are integers (batch, length); `name` is `decoder_` or empty."""
    if input_ids.ndim != 2 or input_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"{name}input_ids must be integers (int64 or int32) of the shape (batch, length); "
            f"got {input_ids.dtype} {tuple(input_ids.shape)}."
        )


def require_tokens(shape: Sequence[int], name: str) -> None:
    """Raises a `ValueError` where there is no sequence or no token in a batch of the shape (batch, length, …)."""
    if 0 in shape:
        raise ValueError(
            f"{name}input_ids or {name}inputs_embeds of (batch, length) = {tuple(shape[:2])} are empty: a "
            "batch needs at least one sequence, and every sequence a token or padding."
        )


def require_known_ids(input_ids: Tensor, vocab_size: int, name: str) -> None:
    """Raises an `IndexError` for an id outside the vocabulary."""
    wrong = input_ids[(input_ids < 0) | (input_ids >= vocab_size)]
    if wrong.numel():
        raise IndexError(
            f"{name}input_ids holds the id {int(wrong[0])}; the vocabulary of {vocab_size} tokens has the ids 0 to "
            f"{vocab_size - 1}."
        )


def require_positions(length: int, most: int, remedy: str = _RAISE_IT) -> None:
    """Raises a `ValueError` for a sequence that is longer than `most`, the configuration's max_position_embeddings."""
    if length > most:
        raise ValueError(
            f"A sequence of {length} tokens is longer than max_position_embeddings={most}: shorten it, or {remedy}."
        )


def look_up_positions(table: nn.Module, positions: Tensor, most: int, remedy: str = _RAISE_IT) -> Tensor:
    """Rows of a `table` of `most` positions, (batch or 1, length, d_model).

    Raises:
        ValueError: a position outside the table, on a CPU, where the lookup itself finds it.
    """
    try:
        return table(positions)
    except IndexError:
        if not is_torchdynamo_compiling():
            require_positions(int(positions.max()) + 1, most, remedy)
            if (lowest := int(positions.min())) < 0:
                raise ValueError(f"position_ids holds the position {lowest}; they count from 0.") from None
        raise


def require_whole_mask(
    attention_mask: Tensor | None, batch: int, length: int, seen: int | Tensor, name: str = ""
) -> None:
    """Raises a `ValueError` for a mask without the `seen` tokens in a cache, which would be taken for one of a static cache;
    `name` is `decoder_` or empty."""
    flat = isinstance(seen, int) and attention_mask is not None and attention_mask.ndim == 2
    if flat and attention_mask.shape[1] < seen + length:
        raise ValueError(
            f"{name}attention_mask must cover the {seen} tokens in the cache and the {length} given ones, (batch, keys) = "
            f"({batch}, {seen + length}); got {tuple(attention_mask.shape)}."
        )


def token_positions(
    length: int,
    device: torch.device,
    attention_mask: Tensor | None,
    segments: Tensor | None,
    seen: int | Tensor = 0,
) -> Tensor:
    """Positions of the last `length` tokens, (batch or 1, length); padding on the left does not count.

    Args:
        attention_mask: (batch, seen + length), or wider with a static cache; one of four dimensions says nothing here.
        segments: (batch, length), see `positions_from_segments`.
        seen: number of tokens before them, in a cache.
    """
    if segments is not None:
        return positions_from_segments(segments)
    if attention_mask is not None and attention_mask.ndim == 2:
        return positions_from_padding(attention_mask, length, seen)
    return (torch.arange(length, device=device) + seen).unsqueeze(0)


class EmbedsTokens:
    """A mixin for a stack with `embed_tokens`: ids or embeddings, refused where they do not fit, become scaled embeddings."""

    config: PreTrainedConfig
    embed_tokens: nn.Embedding
    embed_scale: float = 1.0

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, name: str) -> Tensor:
        """Scaled embeddings, (batch, length, hidden_size), of one of both inputs; `name` is `decoder_` or empty."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"Give exactly one of {name}input_ids and {name}inputs_embeds.")
        if inputs_embeds is None:
            inputs_embeds = self._look_up(input_ids, name)
        elif inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != self.config.hidden_size:
            width = self.config.attribute_map.get("hidden_size", "hidden_size")
            raise ValueError(
                f"{name}inputs_embeds must have the shape (batch, length, {width}) = (batch, length, {self.config.hidden_size}); "
                f"got {tuple(inputs_embeds.shape)}."
            )
        if not is_torchdynamo_compiling():
            require_tokens(inputs_embeds.shape, name)
        return inputs_embeds if self.embed_scale == 1 else inputs_embeds * self.embed_scale

    def _look_up(self, input_ids: Tensor, name: str) -> Tensor:
        """The embeddings of the ids. On a CPU the lookup itself finds a wrong id; a check before it would cost time."""
        require_token_ids(input_ids, name)
        if is_torchdynamo_compiling():
            return self.embed_tokens(input_ids)
        try:
            return self.embed_tokens(input_ids)
        except IndexError:
            require_known_ids(input_ids, self.embed_tokens.num_embeddings, name)
            raise
