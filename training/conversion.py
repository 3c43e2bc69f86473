"""Checkpoints of other models as ReLUFormers, and the attention of a model exchanged with its weights kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download

from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.attention_reluformer import NORMALIZED, POINTWISE
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig
from reluformer.training.foreign_models import FOREIGN_MODELS, convert_model, converted_config, load_foreign
from reluformer.training.loading import Model, changed_config, load_model_config, load_weights

# Of a tokenizer or an image processor; copied as they are, without the library that reads them.
_PREPROCESSOR_FILES = ("*token*.json", "*vocab.json", "*.spm", "*.jinja", "preprocessor_config.json")
# AutoTokenizer finds these tokenizers by the kind of model, unless their settings name the class.
_TOKENIZER_CLASSES = {"marian": ("source.spm", "MarianTokenizer"), "gpt2": ("tokenizer.json", "GPT2Tokenizer")}


def convert(
    source: str | Path, target: str | Path, *, attention: str | None = None, overwrite: bool = False
) -> tuple[Model, list[str]]:
    """Writes a model as a ReLUFormer, with its tokenizer or image processor.

    Args:
        source: folder or Hub id of a MarianMT, ViT, GPT-2 or Llama checkpoint, or of a ReLUFormer whose attention is to be
            exchanged.
        target: folder to write.
        attention: a preset or an activation, with the same weights, which needs fine-tuning. None keeps the attention of the
            source, and the converted model computes what the other one does.
        overwrite: replace a model that is in `target` already; other files there stay.

    Returns:
        The model as it was saved, and a line for each thing that did not carry over unchanged.

    Raises:
        UserError: a source that is no such model, one that ReLUFormer cannot represent, or a folder that is in use.
    """
    target = Path(target)
    if target.exists() and any(target.iterdir()) and not (overwrite and (target / "config.json").is_file()):
        raise UserError(f"{target}: is not empty; give another folder, or --overwrite to replace the model in it")
    if Path(source).resolve() == target.resolve():
        raise UserError(f"{target}: holds the source; give another folder")
    config: Any = load_model_config(source)
    if config.model_type in FOREIGN_MODELS:
        changes = _attention_changes(attention, type(converted_config(config)))
        foreign, notes = load_foreign(source, config)
        model, new = convert_model(foreign, changes)
    elif isinstance(config, AttentionConfig):
        changes, notes = _attention_changes(attention, type(config)), []
        if not changes:
            raise UserError(f"{source}: is a ReLUFormer already; name the attention it shall have, by --attention")
        model, new = load_weights(source, changed_config(config, changes), dtype=config.dtype or torch.float32)
    else:
        names = ", ".join(each.name for each in FOREIGN_MODELS.values())
        raise UserError(f"{source}: is a {config.model_type!r} model; only {names} and ReLUFormer models are converted")
    if new:
        notes.append(f"{len(new)} parameters are new and untrained, the first is {new[0]}")
    model.save_pretrained(target)
    notes += _copy_preprocessor(source, target, config.model_type)
    return model, notes


def _attention_changes(attention: str | None, kind: type[AttentionConfig]) -> dict[str, Any]:
    if attention is None:
        return {}
    if attention in kind.presets:
        return {"preset": attention}
    if attention not in (*POINTWISE, *NORMALIZED):
        choices = ", ".join(dict.fromkeys((*kind.presets, *POINTWISE, *NORMALIZED)))
        raise UserError(f"attention: {attention!r} is unknown; choose one of {choices}")
    return {"attention_activation": attention}


def _copy_preprocessor(source: str | Path, folder: Path, model_type: str) -> list[str]:
    origin = Path(source)
    if not origin.is_dir():
        origin = Path(snapshot_download(str(source), allow_patterns=list(_PREPROCESSOR_FILES)))
    found = {path.name: path for pattern in _PREPROCESSOR_FILES for path in origin.glob(pattern)}
    for name, path in found.items():
        shutil.copyfile(path, folder / name)
    mark, tokenizer_class = _TOKENIZER_CLASSES.get(model_type, ("", ""))
    if mark in found:
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        settings = {"tokenizer_class": tokenizer_class, **settings}
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if {"source.spm", "tokenizer.json", "preprocessor_config.json"}.isdisjoint(found):
        return [f"no tokenizer or image processor is in {source}: none was copied"]
    return []
