"""Loading a model and its tokenizer from a folder or the Hub, with errors for a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import reluformer  # noqa: F401  (registers the model with the Auto classes)
from reluformer.training.errors import UserError, one_line


def load_model_and_tokenizer(
    path_or_hub_id: str | Path, *, attn_implementation: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A sequence-to-sequence model and its tokenizer. Code out of the folder or repository is never executed.

    Args:
        path_or_hub_id: folder written by `save_pretrained` (a run folder, a checkpoint), or a repository id on the Hub.
        attn_implementation: how attention is computed; None takes the model's default.

    Raises:
        UserError: no such folder or repository, no model in it, a model that is no encoder-decoder, weights that are
            damaged or incomplete.
    """
    name = str(path_or_hub_id)
    _check_folder(name)
    config = _load(AutoConfig, name, "model")
    if not config.is_encoder_decoder:
        raise UserError(
            f"{name}: holds a {config.model_type} model, which is no encoder-decoder; give a translation model"
        )
    model, info = _load(
        AutoModelForSeq2SeqLM, name, "model", attn_implementation=attn_implementation, output_loading_info=True
    )
    # from_pretrained only warns, and goes on with random weights.
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise UserError(f"{name}: the weights lack {len(missing)} tensors of the model, the first is {missing[0]}")
    return model, _load(AutoTokenizer, name, "tokenizer")


def _check_folder(name: str) -> None:
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{name}: holds no config.json; give a folder written by save_pretrained")
        return
    if path.is_file():
        raise UserError(f"{name}: is a file; give the folder of a model")
    # A Hub id is `name` or `owner/name`; anything else can only be meant as a folder.
    looks_local = name.count("/") > 1 or name.startswith((".", "/", "~", "runs/")) or "\\" in name or not name
    if looks_local:
        raise UserError(f"{name!r}: no such folder; give the folder of a model, or a repository id on the Hub")


def _load(auto_class: Any, name: str, what: str, **options: Any) -> Any:
    try:
        return auto_class.from_pretrained(name, trust_remote_code=False, **options)
    # RuntimeError: shapes of the weights that do not fit the config; ValueError: not a sequence-to-sequence model.
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        reason = one_line(error)
        raise UserError(f"{name}: its {what} cannot be loaded: {reason}") from error
