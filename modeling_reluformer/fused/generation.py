"""Generation in which the beams of a sentence share its source: its keys and values are held once, and read once a step."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache


class SharedSources:
    """A mixin before `GenerationMixin`: beams and samples share the source's mask, its keys and its values."""

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
