"""The keys and values of the decoder, between a cache of Transformers and the tensors that enter and leave a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

KeysAndValues = Sequence[tuple[Tensor, Tensor]]


def filled(pairs: Iterable[tuple[Tensor, Tensor]]) -> DynamicCache:
    """A cache that holds a key and a value, (batch, heads, length, head_dim), for each layer, as they are and not copied.

    The library's own way to fill one concatenates, which a graph would do, too.
    """
    cache = DynamicCache()
    cache.layers = []
    for key, value in pairs:
        layer = DynamicLayer()
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value
        cache.layers.append(layer)
    return cache


def both(own: KeysAndValues, cross: KeysAndValues) -> EncoderDecoderCache:
    """The cache of a decoder: of its own tokens, and of the source, which is not computed again."""
    cache = EncoderDecoderCache(filled(own), filled(cross))
    cache.is_updated = dict.fromkeys(range(len(cross)), True)
    return cache


def pairs_of(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Key and value of each layer."""
    return [(layer.keys, layer.values) for layer in cache.layers]
