"""The two graphs of an encoder-decoder model, and how each becomes an ONNX file.

    encoder: input_ids, attention_mask                                                     → last_hidden_state
    decoder: input_ids, encoder_attention_mask, encoder_hidden_states, keys and values     → logits, keys and values

The names are those of Optimum and transformers.js, whose merged decoder has a branch for the first step. This one needs none: it
computes the keys and values of the part of the source that it was not given, which is all of it first, and nothing then. The
first step takes keys and values of length 0.
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

ENCODER_FILE, DECODER_FILE = "encoder_model.onnx", "decoder_model_merged.onnx"
GRAPHS = (ENCODER_FILE, DECODER_FILE)
# Sizes of the example that is traced; a size that occurs twice, or 1, would be taken for a rule.
_BATCH, _SOURCE, _KNOWN, _PAST, _TARGET = 2, 9, 5, 7, 4

KeysAndValues = Sequence[tuple[Tensor, Tensor]]


def both_caches(kind: str, layers: int) -> list[str]:
    """Names of key and value of each layer, of the decoder's own attention and then of cross-attention.

    kind: past_key_values | present.
    """
    return [
        f"{kind}.{layer}.{of}.{part}"
        for of in ("decoder", "encoder")
        for layer in range(layers)
        for part in ("key", "value")
    ]


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
    """The encoder, with or without the weights of its attention."""

    def __init__(self, model: PreTrainedModel, attentions: bool) -> None:
        super().__init__()
        self.encoder = model.get_encoder()
        self.attentions = attentions

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Both (batch, source) → hidden states (batch, source, d_model); for each layer (batch, heads, source, source)."""
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask, output_attentions=self.attentions)
        return output.last_hidden_state, output.attentions or ()


class DecoderGraph(nn.Module):
    """Some tokens of the decoder behind those whose keys and values are given, and its output layer."""

    def __init__(self, model: PreTrainedModel, attentions: bool) -> None:
        super().__init__()
        self.model = model
        self.attentions = attentions

    def forward(
        self, input_ids: Tensor, mask: Tensor, encoder_hidden_states: Tensor, past: KeysAndValues, cross: KeysAndValues
    ) -> tuple[Tensor, KeysAndValues, KeysAndValues, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """input_ids (batch, target), mask (batch, source), encoder_hidden_states (batch, source, d_model)
        → logits (batch, target, vocabulary), keys and values of self- and cross-attention, and the weights of both.

        `cross` holds the keys and values of the source's beginning.
        """
        cross = self._whole(encoder_hidden_states, cross)
        cache = EncoderDecoderCache(filled(past), filled(cross))
        cache.is_updated = dict.fromkeys(range(len(cross)), True)  # the source is not computed again
        output = self.model(
            decoder_input_ids=input_ids,
            attention_mask=mask,
            encoder_outputs=BaseModelOutput(encoder_hidden_states),
            **{CACHE_NAME: cache},
            use_cache=True,
            output_attentions=self.attentions,
        )
        own = pairs_of(cache.self_attention_cache)
        return output.logits, own, cross, output.decoder_attentions or (), output.cross_attentions or ()

    def _whole(self, encoder_hidden_states: Tensor, cross: KeysAndValues) -> KeysAndValues:
        """The given keys and values with those of the rest of the source behind them."""
        rest = encoder_hidden_states[:, cross[0][0].shape[2] :]
        whole = []
        for layer, given in zip(self.model.get_decoder().layers, cross, strict=True):
            computed = layer.encoder_attn._keys_and_values(rest, rest, cache=None, rotation=None)
            whole.append(tuple(torch.cat(pair, dim=2) for pair in zip(given, computed, strict=True)))
        return whole


def write_graphs(model: PreTrainedModel, folder: Path, opset: int, attentions: bool = False) -> None:
    """Writes both ONNX files of a model that is in evaluation mode and float32. All batches and lengths are dynamic.

    attentions: the weights are outputs, too: `encoder_attentions.N`, `decoder_attentions.N` and `cross_attentions.N`.
    """
    _write_encoder(model, folder / ENCODER_FILE, opset, attentions)
    _write_decoder(model, folder / DECODER_FILE, opset, attentions)


def _write_encoder(model: PreTrainedModel, path: Path, opset: int, attentions: bool) -> None:
    ids = torch.ones(_BATCH, _SOURCE, dtype=torch.long)
    sizes = {0: Dim("batch_size"), 1: Dim("source", max=model.config.max_position_embeddings)}
    weights = [f"encoder_attentions.{layer}" for layer in range(model.config.encoder_layers) if attentions]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    outputs = ["last_hidden_state", *weights]
    _write(EncoderGraph(model, attentions), tuple(inputs.values()), (sizes, sizes), path, [*inputs], outputs, opset)


def _write_decoder(model: PreTrainedModel, path: Path, opset: int, attentions: bool) -> None:
    config = model.config
    heads, features = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
    layers = config.decoder_layers
    # transformers.js knows the name batch_size. min: of the trace; the graph has no such limit
    batch, target, past, known, source = (*map(Dim, ("batch_size", "target", "past", "known")), Dim("source", min=4))

    def pairs(*shape: int) -> list[tuple[Tensor, Tensor]]:
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(layers)]

    inputs = {
        "input_ids": torch.ones(_BATCH, _TARGET, dtype=torch.long),
        "encoder_attention_mask": torch.ones(_BATCH, _SOURCE, dtype=torch.long),
        "encoder_hidden_states": torch.zeros(_BATCH, _SOURCE, config.d_model),
    }
    past_and_cross = pairs(_BATCH, heads, _PAST, features), pairs(_BATCH, heads, _KNOWN, features)
    own, cross = {0: batch, 2: past}, {0: batch, 2: known}
    of_source = {0: batch, 1: source}
    sizes = ({0: batch, 1: target}, of_source, of_source, layers * [(own, own)], layers * [(cross, cross)])
    names = [*inputs, *both_caches("past_key_values", layers)]
    outputs = ["logits", *both_caches("present", layers)]
    if attentions:
        outputs += [f"{kind}_attentions.{layer}" for kind in ("decoder", "cross") for layer in range(layers)]
    _write(DecoderGraph(model, attentions), (*inputs.values(), *past_and_cross), sizes, path, names, outputs, opset)


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
            # that no more of the source is given than there is is no rule that a dimension can have
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
    for node in written.model.graph:
        node.metadata_props.clear()  # where in Python it comes from: half a megabyte that onnxruntime does not read
    written.save(path)
