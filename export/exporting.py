"""A trained model as a folder of ONNX graphs, with its tokenizer and settings beside them."""

from __future__ import annotations

import copy
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from reluformer import ReLUFormerConfig
from reluformer.configuration.errors import UserError
from reluformer.configuration.whole_files import holds_one, require_own, whole_folder
from reluformer.export.checking import Difference, difference
from reluformer.export.graphs import LARGEST_FILE, write_graphs
from reluformer.export.names import GRAPHS
from reluformer.export.running import OnnxTranslationModel
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.training.loading import TOKENIZER_FILES, load_model_and_tokenizer

# What torch.onnx writes without converting from one to another.
OPSETS = range(18, 24)
_OWN_FILES = (*GRAPHS, *(f"{name}.data" for name in GRAPHS), "config.json", "generation_config.json", *TOKENIZER_FILES)
# The others search a threshold in sorted scores, for which ONNX has no plain operators.
_ACTIVATIONS = (*POINTWISE, "softmax")


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
    source: str | Path, target: str | Path, *, int8: bool = False, opset: int = OPSETS[0], overwrite: bool = False
) -> Export:
    """Writes a ReLUFormer as two ONNX graphs in float32, with tokenizer, config.json and generation_config.json.

    The graphs are run by onnxruntime once and compared with PyTorch.

    Args:
        source: folder or Hub id of the model.
        target: folder to write; it appears whole or not at all.
        int8: keep the weights of all matrix products as 8-bit integers. The graphs are compared before that.
        opset: version of ONNX's operators.
        overwrite: replace an exported model that is in `target` already.

    Raises:
        UserError: a source that is no ReLUFormer, or one whose attention does not export; an opset out of range; a folder that is
            in use or holds other files; graphs that compute something else than PyTorch.
    """
    # Of an extra: what is missing is told before a model is loaded.
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401

    target = Path(target)
    _check(source, target, opset, overwrite)
    # The reference: plain operators, of every activation.
    model, tokenizer = load_model_and_tokenizer(source)
    _check_model(source, model)
    model = prepared(model)
    with whole_folder(target) as folder:
        found = write_checked(model, folder, opset)
        if int8:
            quantize(folder)
            found = difference(model, OnnxTranslationModel.from_pretrained(folder))
        _save_config(model, folder)
        tokenizer.save_pretrained(folder)
        sizes = {name: (folder / name).stat().st_size + _data_size(folder / name) for name in GRAPHS}
    return Export(target, sizes, found)


def prepared(model: PreTrainedModel) -> PreTrainedModel:
    """The model as it is exported: in float32, on the CPU, in evaluation mode, with attention of plain operators."""
    model = model.float().cpu().eval().requires_grad_(False)
    model.set_attn_implementation("eager")
    return model


def write_checked(model: PreTrainedModel, folder: Path, opset: int = OPSETS[0]) -> Difference:
    """Writes graphs and settings of a [`prepared`] model, any that `write_graphs` takes.

    Raises:
        UserError: the graphs compute something else than PyTorch.
    """
    write_graphs(model, folder, opset)
    _save_config(model, folder)
    found = difference(model, OnnxTranslationModel.from_pretrained(folder))
    if not found.largest <= found.allowed:
        raise UserError(
            f"the exported graphs differ from PyTorch by up to {found.largest:.2g} in logits of up to {found.scale:.2g}; "
            f"rounding explains {found.allowed:.2g}. Nothing was written; please report it with the versions of torch, "
            "onnxscript and onnxruntime"
        )
    return found


def _check(source: str | Path, target: Path, opset: int, overwrite: bool) -> None:
    if opset not in OPSETS:
        raise UserError(f"opset: {opset} is out of range; give {OPSETS[0]} to {OPSETS[-1]}")
    here, there = Path(source).resolve(), target.resolve()
    if Path(source).is_dir() and (here == there or there in here.parents):
        raise UserError(f"{target}: holds the source; give another folder")
    if holds_one(target, "model", GRAPHS, overwrite=overwrite):
        names = (path.relative_to(target).as_posix() for path in sorted(target.iterdir()))
        require_own(target, [name for name in names if name not in _OWN_FILES])


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

    with whole_folder(folder / "int8") as inner:
        logging.getLogger().addFilter(_is_no_advice)
        try:
            for name in GRAPHS:
                path = folder / name
                large = path.stat().st_size + _data_size(path) > LARGEST_FILE
                quantize_dynamic(
                    path, inner / name, per_channel=True, weight_type=QuantType.QInt8, use_external_data_format=large
                )
        finally:
            logging.getLogger().removeFilter(_is_no_advice)
        for path in list(inner.iterdir()):
            os.replace(path, folder / path.name)
    (folder / "int8").rmdir()


def _is_no_advice(record: logging.LogRecord) -> bool:
    """Whether a record is something else than onnxruntime's advice on models of other tools, which is no advice for a user."""
    return "pre-processing before quantization" not in record.getMessage()


def _save_config(model: PreTrainedModel, folder: Path) -> None:
    config = copy.deepcopy(model.config)
    config.dtype = torch.float32
    if hasattr(config, "auto_map"):
        del config.auto_map
    config.to_json_file(folder / "config.json")  # save_pretrained would add the model's code, which nothing here needs
    model.generation_config.save_pretrained(folder)


def _data_size(path: Path) -> int:
    """Bytes of the weights beside a graph that is too large for one file."""
    data = path.with_name(f"{path.name}.data")
    return data.stat().st_size if data.is_file() else 0
