"""How the models take part in the library's `generate`: masks stay compact, and beams share the source of their sentence."""

from typing import Any

from torch import Tensor
from transformers import Cache

from .configuration_attention import CACHE_NAME


class CompactMask:
    """A mixin before `GenerationMixin`: the mask of generation stays (batch, keys)."""

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        # generate() would prepare a dense mask for static caches; the compact one serves every implementation here
        return attention_mask


class SharedSources(CompactMask):
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
        if expand_size == 1 or model_kwargs.get(CACHE_NAME) is not None:
            return super()._expand_inputs_for_generation(expand_size, is_encoder_decoder, input_ids, **model_kwargs)
        source = {name: model_kwargs.pop(name, None) for name in ("encoder_outputs", "attention_mask")}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **model_kwargs)
        return input_ids, {**model_kwargs, **source, "targets_per_source": expand_size}

    def _reorder_cache(self, cache: Cache, beam_idx: Tensor) -> Cache:
        """The beams of a sentence share its source, so only what they have written themselves changes places."""
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache
