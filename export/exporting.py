"""A trained model as a folder of two ONNX graphs, with its tokenizer and settings beside them.

    encoder: input_ids, attention_mask                                                     → last_hidden_state
    decoder: input_ids, encoder_attention_mask, encoder_hidden_states, keys and values     → logits, keys and values

The names are those of Optimum and transformers.js, whose merged decoder has a branch for the first step. This one needs
none: it computes the keys and values of the part of the source that it was not given, which is all of it first, and
nothing then. The first step takes keys and values of length 0.
"""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from reluformer import ReLUFormerConfig
from reluformer.configuration.errors import UserError
from reluformer.export.running import (
    DECODER_FILE,
    ENCODER_FILE,
    GRAPHS,
    KeysAndValues,
    OnnxTranslationModel,
    cache_names,
    cache_of,
)
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME
from reluformer.records.records import new_folder
from reluformer.translating.loading import load_model_and_tokenizer

OPSET = 18  # what torch.onnx writes without converting
# The others search a threshold in sorted scores, for which ONNX has no plain operators.
_ACTIVATIONS = (*POINTWISE, "softmax")
# Sizes of the example that is traced; a size that occurs twice, or 1, would be taken for a rule.
_BATCH, _SOURCE, _KNOWN, _PAST, _TARGET = 2, 9, 5, 7, 4
# Of the comparison: lengths of the sources of a batch, and the steps in which targets are given.
_LENGTHS, _STEPS = (7, 1, 4), (3, 1, 1, 2)
# Of the largest logit. Two orders of the same float32 operations leave less; a wrong mask or position changes logits by
# more.
_TOLERANCE = 1e-3
_WHY_MARIAN = (
    "A ReLUFormer. Its graphs take and give what Marian's do, and transformers.js knows a model by model_type alone."
)


class Difference(NamedTuple):
    """largest: between a logit of the graphs and that of PyTorch in float32. scale: largest logit."""

    largest: float
    scale: float


def export(source: str | Path, target: str | Path, *, int8: bool = False, attentions: bool = False) -> Difference:
    """Writes a ReLUFormer as two ONNX graphs in float32, with tokenizer, config.json and generation_config.json.

    The graphs are run by onnxruntime once and compared with PyTorch. Nothing is written where they compute something
    else.

    Args:
        source: folder or Hub id of the model.
        target: new folder to write.
        int8: keep the weights of all matrix products as 8-bit integers. The graphs are compared before that, and after
            it only to return the difference.
        attentions: attention weights are outputs of the graphs, too, see `write_graphs`.

    Raises:
        UserError: a source that is no ReLUFormer, or one whose attention does not export; a folder that is in use;
            graphs that compute something else than PyTorch.
    """
    # Of an extra: what is missing is told before a model is loaded.
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401

    with new_folder(target) as folder:
        model, tokenizer = load_model_and_tokenizer(source, dtype=torch.float32)
        _check_model(source, model)
        deviation = write_checked(model, folder, attentions)
        if int8:
            _quantize(folder)
            deviation = difference(model, OnnxTranslationModel.from_pretrained(folder))
        tokenizer.save_pretrained(folder)
    return deviation


def write_checked(model: PreTrainedModel, folder: Path, attentions: bool = False) -> Difference:
    """Writes graphs and settings of a model, which is put into float32, onto the CPU and into evaluation mode.

    Raises:
        UserError: the graphs compute something else than PyTorch.
    """
    model.float().cpu().eval().requires_grad_(False)
    model.set_attn_implementation("eager")
    write_graphs(model, folder, attentions)
    _save_config(model, folder)
    deviation = difference(model, OnnxTranslationModel.from_pretrained(folder))
    if not deviation.largest <= _TOLERANCE * deviation.scale:
        raise UserError(
            f"the exported graphs differ from PyTorch by up to {deviation.largest:.2g} in logits of up to "
            f"{deviation.scale:.2g}, which is more than rounding. Nothing was written; please report it with the "
            "versions of torch, onnxscript and onnxruntime"
        )
    return deviation


def _check_model(source: str | Path, model: PreTrainedModel) -> None:
    config = model.config
    if config.model_type != ReLUFormerConfig.model_type:
        advice = "; `reluformer convert` makes it one" if config.model_type == "marian" else ""
        raise UserError(f"{source}: is a {config.model_type!r} model; only ReLUFormers are exported{advice}")
    if config.attention_activation not in _ACTIVATIONS:
        raise UserError(
            f"{source}: attention_activation={config.attention_activation!r} has no plain ONNX operators; exported are "
            f"{', '.join(_ACTIVATIONS)}"
        )


def _quantize(folder: Path) -> None:
    """Replaces both graphs of a folder by those with 8-bit weights, with a scale and a zero for each column of a
    matrix.

    The weights are unsigned, as the inputs are: u8 × u8 is exact on every processor. For u8 × s8, onnxruntime takes an
    instruction where there is no VNNI (Haswell to Skylake, Zen 1 to 3) that adds two products in 16 bits and cuts the
    sum off: 2 · 255 · 127 = 64,770 becomes 32,767.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    for name in GRAPHS:
        # quantize_dynamic asks for it; nodes and weights stay the same, since torch has inferred the shapes already
        quant_pre_process(folder / name, folder / name, skip_optimization=True, skip_symbolic_shape=True)
        quantize_dynamic(folder / name, folder / name, per_channel=True, weight_type=QuantType.QUInt8)
        (folder / f"{name}.data").unlink(missing_ok=True)


def _save_config(model: PreTrainedModel, folder: Path) -> None:
    config = model.config.to_dict() | {"dtype": "float32", "model_type": "marian", "architectures": ["MarianMTModel"]}
    # of the model's own code and of training; Marian's standard deviation is no None
    for name in ("auto_map", "init_std"):
        config.pop(name, None)
    config["comment"] = _WHY_MARIAN
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(folder)


@torch.no_grad()
def difference(model: PreTrainedModel, exported: OnnxTranslationModel) -> Difference:
    """How far the logits of the graphs are from those of the model, which is in float32 and evaluation mode.

    Random tokens; sources with padding; targets in steps of several lengths after a cache that grows from nothing.
    PyTorch computes each target at once without a cache.
    """
    config, generator = model.config, torch.Generator().manual_seed(0)
    longest = config.max_position_embeddings
    lengths = torch.tensor(_LENGTHS).clamp_max(longest)
    mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).long()
    sources = torch.randint(config.vocab_size, mask.shape, generator=generator)
    size = (len(lengths), min(sum(_STEPS), longest))
    targets = torch.randint(config.decoder_vocab_size, size, generator=generator)
    wanted = model(input_ids=sources, attention_mask=mask, decoder_input_ids=targets, use_cache=False).logits

    inputs = {"attention_mask": mask, "encoder_outputs": exported.encoder(sources, mask)}
    # one by one where the model has too few positions for the steps
    steps = _STEPS if targets.shape[1] == sum(_STEPS) else [1] * targets.shape[1]
    logits, cache = [], None
    for tokens in targets.split(steps, dim=1):
        output = exported(**inputs, decoder_input_ids=tokens, cache=cache)
        cache = getattr(output, CACHE_NAME)
        logits.append(output.logits)
    largest = (torch.cat(logits, dim=1) - wanted).abs().max().nan_to_num(nan=torch.inf)
    return Difference(float(largest), float(wanted.abs().max()))


# The graphs


class EncoderGraph(nn.Module):
    """The encoder, with or without the weights of its attention."""

    def __init__(self, model: PreTrainedModel, attentions: bool) -> None:
        super().__init__()
        self.encoder = model.get_encoder()
        self.attentions = attentions

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Both (batch, source) → hidden states (batch, source, d_model); for each layer (batch, heads, source,
        source)."""
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask, output_attentions=self.attentions)
        return output.last_hidden_state, output.attentions or ()


class DecoderGraph(nn.Module):
    """Some tokens of the decoder after those whose keys and values are given, and its output layer."""

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
        cache = cache_of(past, cross)
        output = self.model(
            decoder_input_ids=input_ids,
            attention_mask=mask,
            encoder_outputs=BaseModelOutput(encoder_hidden_states),
            **{CACHE_NAME: cache},
            use_cache=True,
            output_attentions=self.attentions,
        )
        own = [(layer.keys, layer.values) for layer in cache.self_attention_cache.layers]
        return output.logits, own, cross, output.decoder_attentions or (), output.cross_attentions or ()

    def _whole(self, encoder_hidden_states: Tensor, cross: KeysAndValues) -> KeysAndValues:
        """The given keys and values with those of the rest of the source after them."""
        rest = encoder_hidden_states[:, cross[0][0].shape[2] :]
        whole = []
        for layer, known in zip(self.model.get_decoder().layers, cross, strict=True):
            computed = layer.encoder_attn._keys_and_values(rest, rest, cache=None, rotation=None)
            whole.append(tuple(torch.cat(pair, dim=2) for pair in zip(known, computed, strict=True)))
        return whole


def write_graphs(model: PreTrainedModel, folder: Path, attentions: bool = False) -> None:
    """Writes both ONNX files of a model that is in evaluation mode and float32. All batches and lengths are dynamic.

    attentions: the weights are outputs, too: `encoder_attentions.N`, `decoder_attentions.N` and `cross_attentions.N`.
    """
    config = model.config
    ids = torch.ones(_BATCH, _SOURCE, dtype=torch.long)
    sizes = {0: Dim("batch_size"), 1: Dim("source", max=config.max_position_embeddings)}
    inputs = {"input_ids": (ids, sizes), "attention_mask": (torch.ones_like(ids), sizes)}
    weights = [f"encoder_attentions.{layer}" for layer in range(config.encoder_layers) if attentions]
    _write(EncoderGraph(model, attentions), inputs, ["last_hidden_state", *weights], folder / ENCODER_FILE)

    heads, layers = config.decoder_attention_heads, config.decoder_layers
    # transformers.js knows the name batch_size. min: of the trace; the graph has no such limit
    batch, target, past, known, source = (*map(Dim, ("batch_size", "target", "past", "known")), Dim("source", min=4))

    def pairs(length: int, size: Dim) -> tuple[list[tuple[Tensor, Tensor]], list[Any]]:
        zeros = torch.zeros(_BATCH, heads, length, config.d_model // heads)
        return [(zeros.clone(), zeros.clone()) for _ in range(layers)], layers * [({0: batch, 2: size},) * 2]

    of_source = {0: batch, 1: source}
    inputs = {
        "input_ids": (torch.ones(_BATCH, _TARGET, dtype=torch.long), {0: batch, 1: target}),
        "encoder_attention_mask": (ids, of_source),
        "encoder_hidden_states": (torch.zeros(_BATCH, _SOURCE, config.d_model), of_source),
        "past": pairs(_PAST, past),
        "cross": pairs(_KNOWN, known),
    }
    weights = [f"{kind}_attentions.{layer}" for kind in ("decoder", "cross") for layer in range(layers) if attentions]
    outputs = ["logits", *cache_names("present", layers), *weights]
    _write(DecoderGraph(model, attentions), inputs, outputs, folder / DECODER_FILE)


def _write(graph: nn.Module, inputs: dict[str, tuple[Any, Any]], outputs: list[str], path: Path) -> None:
    """inputs: by name, the example and its dynamic sizes; the decoder's "past" and "cross" are keys and values of all
    layers."""
    examples, sizes = zip(*inputs.values(), strict=True)
    layers = len(inputs["past"][0]) if "past" in inputs else 0
    names = [name for name in inputs if name not in ("past", "cross")] + cache_names("past_key_values", layers)
    with torch.no_grad():
        program = torch.export.export(
            graph.eval(),
            examples,
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
            input_names=names,
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    for node in written.model.graph:
        node.metadata_props.clear()  # where in Python it comes from: half a megabyte that onnxruntime does not read
    written.save(path)
