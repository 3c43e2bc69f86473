"""The two graphs of an encoder-decoder model, and how each becomes an ONNX file.

    encoder: input_ids, attention_mask                             → last_hidden_state, keys and values of the cross-attention
    decoder: input_ids, encoder_attention_mask, keys and values    → logits, keys and values of the self-attention

The cross-attention's keys and values depend on the source alone: the encoder's graph computes them once, and every step of the
decoder takes them as they are. The first step takes keys and values of length 0 for the self-attention. The names are those of
Optimum.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput

from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME

ENCODER_FILE, DECODER_FILE = "encoder_model.onnx", "decoder_with_past_model.onnx"
GRAPHS = (ENCODER_FILE, DECODER_FILE)
# Sizes of the example that is traced; a size that occurs twice, or 1, would be taken for a rule.
_SOURCES, _TARGETS, _SOURCE, _PAST, _TARGET = 2, 3, 5, 7, 4

KeysAndValues = Sequence[tuple[Tensor, Tensor]]


def cache_names(kind: str, of: str, layers: int) -> list[str]:
    """Names of the key and the value of each layer. kind: past_key_values | present. of: decoder | encoder."""
    return [f"{kind}.{layer}.{of}.{part}" for layer in range(layers) for part in ("key", "value")]


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


def pairs_of(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Key and value of each layer."""
    return [(layer.keys, layer.values) for layer in cache.layers]


class EncoderGraph(nn.Module):
    """The encoder, and the first layers that read it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, KeysAndValues]:
        """Both (batch, source) → hidden states (batch, source, d_model); for each layer (batch, heads, source, head_dim)."""
        hidden_states = self.model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask)[0]
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # A step of the decoder computes the keys and values. Its other results are no output, so they leave the graph.
        self.model.get_decoder()(
            input_ids=input_ids[:, :1],
            encoder_hidden_states=hidden_states,
            encoder_attention_mask=attention_mask,
            **{CACHE_NAME: cache},
        )
        return hidden_states, pairs_of(cache.cross_attention_cache)


class DecoderGraph(nn.Module):
    """Some tokens of the decoder behind those whose keys and values are given, and its output layer."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, encoder_attention_mask: Tensor, past: KeysAndValues, cross: KeysAndValues
    ) -> tuple[Tensor, KeysAndValues]:
        """input_ids (batch, target), encoder_attention_mask (sources, source) → logits (batch, target, vocabulary) and past.

        Neighbouring rows of the batch share a source.
        """
        sources, source = encoder_attention_mask.shape
        cache = EncoderDecoderCache(filled(past), filled(cross))
        cache.is_updated = dict.fromkeys(range(len(cross)), True)  # the source is not computed again
        # The model reads the shape alone: all that depends on the values is in the cache.
        encoded = cross[0][0].new_zeros(sources, source, self.model.config.d_model)
        logits = self.model(
            decoder_input_ids=input_ids,
            attention_mask=encoder_attention_mask,
            encoder_outputs=BaseModelOutput(encoded),
            **{CACHE_NAME: cache},
            use_cache=True,
            targets_per_source=input_ids.shape[0] // sources,
        ).logits
        return logits, pairs_of(cache.self_attention_cache)


def write_graphs(model: PreTrainedModel, folder: Path, opset: int) -> None:
    """Writes both ONNX files of a model that is in evaluation mode and float32. All batches and lengths are dynamic."""
    _write_encoder(model, folder / ENCODER_FILE, opset)
    _write_decoder(model, folder / DECODER_FILE, opset)


def _write_encoder(model: PreTrainedModel, path: Path, opset: int) -> None:
    ids = torch.ones(_SOURCES, _SOURCE, dtype=torch.long)
    sizes = {0: Dim("batch"), 1: Dim("source", max=model.config.max_position_embeddings)}
    outputs = ["last_hidden_state", *cache_names("present", "encoder", model.config.decoder_layers)]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    _write(EncoderGraph(model), tuple(inputs.values()), (sizes, sizes), path, [*inputs], outputs, opset)


def _write_decoder(model: PreTrainedModel, path: Path, opset: int) -> None:
    config = model.config
    heads, features = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
    layers, rows = config.decoder_layers, _SOURCES * _TARGETS
    source, past, target = (Dim(name) for name in ("source", "past", "target"))
    batch, sources = Dim("batch", min=2 * _SOURCES), Dim("sources")  # min: of the trace; the graph has no such limit

    def pairs(*shape: int) -> list[tuple[Tensor, Tensor]]:
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(layers)]

    ids, mask = torch.ones(rows, _TARGET, dtype=torch.long), torch.ones(_SOURCES, _SOURCE, dtype=torch.long)
    inputs = (ids, mask, pairs(rows, heads, _PAST, features), pairs(_SOURCES, heads, _SOURCE, features))
    own, cross = {0: batch, 2: past}, {0: sources, 2: source}
    sizes = ({0: batch, 1: target}, {0: sources, 1: source}, layers * [(own, own)], layers * [(cross, cross)])
    names = [name for of in ("decoder", "encoder") for name in cache_names("past_key_values", of, layers)]
    outputs = ["logits", *cache_names("present", "decoder", layers)]
    _write(DecoderGraph(model), inputs, sizes, path, ["input_ids", "encoder_attention_mask", *names], outputs, opset)


def _write(
    graph: nn.Module,
    inputs: tuple[Any, ...],
    sizes: tuple[Any, ...],
    path: Path,
    input_names: list[str],
    output_names: list[str],
    opset: int,
) -> None:
    with torch.no_grad():
        program = torch.export.export(
            graph.eval(),
            inputs,
            dynamic_shapes=sizes,
            # that a batch is a multiple of the sources it shares is no rule that a dimension can have
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    # It would tell of torchvision, which is not needed, and of each further use of a dimension's name.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="# The axis name: ")
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
        written = torch.onnx.export(
            program,
            dynamic_shapes=sizes,
            input_names=input_names,
            output_names=output_names,
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    written.save(path)
