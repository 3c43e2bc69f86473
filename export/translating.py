"""A translator of any model: by PyTorch, or by onnxruntime for a folder that `reluformer export` has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reluformer.configuration.errors import UserError
from reluformer.export.names import GRAPHS
from reluformer.export.running import OnnxTranslationModel
from reluformer.training.loading import load_tokenizer
from reluformer.training.translation import Translator


def load_translator(path_or_hub_id: str | Path, **options: Any) -> Translator:
    """As `Translator.from_pretrained`, for an exported model, too.

    Args:
        path_or_hub_id: of a model, or a folder that `reluformer export` has written.
        options: as there; an exported model takes neither attn_implementation nor a device other than cpu.

    Raises:
        UserError: see `Translator.from_pretrained` and `OnnxTranslationModel.from_pretrained`; an option that an exported model
            cannot follow.
    """
    if not any((Path(path_or_hub_id) / name).is_file() for name in GRAPHS):
        return Translator.from_pretrained(path_or_hub_id, **options)
    if name := options.pop("attn_implementation", None):
        raise UserError(
            f"attn_implementation: {name!r} was given, but {path_or_hub_id} is an exported model; leave it out"
        )
    if (device := options.pop("device", None)) not in (None, "cpu"):
        raise UserError(
            f"device: {device!r} was given, but {path_or_hub_id} is an exported model, which runs on cpu here"
        )
    return Translator(OnnxTranslationModel.from_pretrained(path_or_hub_id), load_tokenizer(path_or_hub_id), **options)
