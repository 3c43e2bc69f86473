"""A trained model as a folder of ONNX graphs, with its tokenizer and settings beside them."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer import ReLUFormerConfig
from reluformer.configuration.errors import UserError
from reluformer.export.graphs import GRAPHS, write_graphs
from reluformer.export.running import OnnxTranslationModel
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME
from reluformer.training.loading import load_model_and_tokenizer

# What torch.onnx writes without converting from one to another.
OPSETS = range(18, 24)
# The others search a threshold in sorted scores, for which ONNX has no plain operators.
_ACTIVATIONS = (*POINTWISE, "softmax")
# Of the comparison: lengths of the sources of a batch, and the steps in which targets are given.
_LENGTHS, _STEPS = (7, 1, 4), (3, 1, 1, 2)
_WHY_MARIAN = (
    "A ReLUFormer. Its graphs take and give what Marian's do, and transformers.js knows a model by model_type alone."
)
# Two orders of the same float32 operations leave errors of one size. A wrong mask or position changes logits by far more.
_ROUNDINGS = 16


class Difference(NamedTuple):
    """largest: of a logit from that of PyTorch in float64. allowed: the most that rounding explains. scale: largest logit."""

    largest: float
    allowed: float
    scale: float


@dataclass(frozen=True)
class Export:
    """What was written.

    folder: of the exported model. sizes: bytes of each graph, by the name of its file.
    difference: how far the logits of the graphs, with int8 those of the quantised ones, are from PyTorch's in float64.
    """

    folder: Path
    sizes: dict[str, int]
    difference: Difference


def export(
    source: str | Path,
    target: str | Path,
    *,
    int8: bool = False,
    attentions: bool = False,
    opset: int = OPSETS[0],
    overwrite: bool = False,
) -> Export:
    """Writes a ReLUFormer as two ONNX graphs in float32, with tokenizer, config.json and generation_config.json.

    The graphs are run by onnxruntime once and compared with PyTorch. Nothing is written where they compute something else.

    Args:
        source: folder or Hub id of the model.
        target: folder to write.
        int8: keep the weights of all matrix products as 8-bit integers. The graphs are compared before that.
        attentions: attention weights are outputs of the graphs, too, see `write_graphs`.
        opset: version of ONNX's operators.
        overwrite: replace an exported model that is in `target` already; other files there stay.

    Raises:
        UserError: a source that is no ReLUFormer, or one whose attention does not export; an opset out of range; a folder that is
            in use; graphs that compute something else than PyTorch.
    """
    # Of an extra: what is missing is told before a model is loaded.
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401

    target = Path(target)
    _check(target, opset, overwrite)
    model, tokenizer = load_model_and_tokenizer(source)
    _check_model(source, model)
    model = prepared(model)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = write_checked(model, folder, opset, attentions)
        if int8:
            quantize(folder)
            found = difference(model, OnnxTranslationModel.from_pretrained(folder))
        tokenizer.save_pretrained(folder)
        target.mkdir(parents=True, exist_ok=True)
        for name in GRAPHS:
            (target / f"{name}.data").unlink(missing_ok=True)  # of a larger model that is replaced
        for path in folder.iterdir():  # not copytree, which gives the target the rights of a temporary folder
            shutil.copy(path, target)
    return Export(target, {name: (target / name).stat().st_size for name in GRAPHS}, found)


def prepared(model: PreTrainedModel) -> PreTrainedModel:
    """The model as it is exported: in float32, on the CPU, in evaluation mode, with attention of plain operators."""
    model = model.float().cpu().eval().requires_grad_(False)
    model.set_attn_implementation("eager")
    return model


def write_checked(model: PreTrainedModel, folder: Path, opset: int = OPSETS[0], attentions: bool = False) -> Difference:
    """Writes graphs and settings of a [`prepared`] model.

    Raises:
        UserError: the graphs compute something else than PyTorch.
    """
    write_graphs(model, folder, opset, attentions)
    _save_config(model, folder)
    found = difference(model, OnnxTranslationModel.from_pretrained(folder))
    if not found.largest <= found.allowed:
        raise UserError(
            f"the exported graphs differ from PyTorch by up to {found.largest:.2g} in logits of up to {found.scale:.2g}; "
            f"rounding explains {found.allowed:.2g}. Nothing was written; please report it with the versions of torch, "
            "onnxscript and onnxruntime"
        )
    return found


def _check(target: Path, opset: int, overwrite: bool) -> None:
    if opset not in OPSETS:
        raise UserError(f"opset: {opset} is out of range; give {OPSETS[0]} to {OPSETS[-1]}")
    is_export = all((target / name).is_file() for name in GRAPHS)
    if target.exists() and any(target.iterdir()) and not (overwrite and is_export):
        raise UserError(f"{target}: is not empty; give another folder, or --overwrite to replace the graphs in it")


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


def quantize(folder: Path) -> None:
    """Replaces both graphs of a folder by those with 8-bit weights, with a scale for each column of a matrix."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for name in GRAPHS:
        smaller = folder / f"int8_{name}"
        quantize_dynamic(folder / name, smaller, per_channel=True, weight_type=QuantType.QInt8)
        os.replace(smaller, folder / name)
        (folder / f"{name}.data").unlink(missing_ok=True)


def _save_config(model: PreTrainedModel, folder: Path) -> None:
    config = model.config.to_dict() | {"dtype": "float32", "model_type": "marian", "architectures": ["MarianMTModel"]}
    # of the model's own code and of training; Marian's standard deviation is no None
    for name in ("auto_map", "init_std"):
        config.pop(name, None)
    config["comment"] = _WHY_MARIAN
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(folder)


# Whether exported graphs compute what the model does


@torch.no_grad()
def difference(model: PreTrainedModel, exported: OnnxTranslationModel) -> Difference:
    """How far the graphs are from the model, which is in float32 and evaluation mode.

    Random tokens; sources with padding; targets in steps of several lengths behind a cache that grows from nothing. PyTorch
    computes each target at once without a cache. `allowed` is 16 times the error of PyTorch itself in float32, and at least 16
    roundings of the largest logit.
    """
    config, generator = model.config, torch.Generator().manual_seed(0)
    longest = config.max_position_embeddings
    lengths = torch.tensor(_LENGTHS).clamp_max(longest)
    mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).long()
    sources = torch.randint(config.vocab_size, mask.shape, generator=generator)
    size = (len(lengths), min(sum(_STEPS), longest))
    targets = torch.randint(config.decoder_vocab_size, size, generator=generator)

    wanted = _at_once(copy.deepcopy(model).double(), sources, mask, targets)
    rounding = _distance(_at_once(model, sources, mask, targets), wanted)
    largest, scale = _distance(_in_steps(exported, sources, mask, targets), wanted), float(wanted.abs().max())
    return Difference(largest, _ROUNDINGS * max(rounding, torch.finfo(torch.float32).eps * scale), scale)


def _at_once(model: PreTrainedModel, sources: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
    """Logits (batch, length, vocabulary) of PyTorch, without a cache."""
    return model(input_ids=sources, attention_mask=mask, decoder_input_ids=targets, use_cache=False).logits


def _in_steps(exported: OnnxTranslationModel, sources: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
    """The same of the graphs, with a cache."""
    given = {"attention_mask": mask, "encoder_outputs": exported.encoder(sources, mask)}
    # one by one where the model has too few positions for the steps
    steps = _STEPS if targets.shape[1] == sum(_STEPS) else [1] * targets.shape[1]
    logits, cache = [], None
    for tokens in targets.split(steps, dim=1):
        output = exported(**given, decoder_input_ids=tokens, cache=cache)
        cache = getattr(output, CACHE_NAME)
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def _distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).abs().max().nan_to_num(nan=torch.inf))
