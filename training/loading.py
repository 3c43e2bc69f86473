"""Loading a model and its tokenizer from a folder or the Hub, with errors for a user.

Weights are read from safetensors alone, never from pickles, which can hold code; code in a folder or repository is not executed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from reluformer.configuration.errors import UserError, one_line
from reluformer.training.shipped import located


def load_model_and_tokenizer(
    path_or_hub_id: str | Path, *, attn_implementation: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A sequence-to-sequence model and its tokenizer.

    Args:
        path_or_hub_id: folder written by `save_pretrained` (a run folder, a checkpoint), name of a model that comes with the
            package, or repository id on the Hub.
        attn_implementation: how attention is computed; None takes the model's default.

    Raises:
        UserError: no such folder or repository, no model in it, a model that is not an encoder-decoder, weights that are
            damaged, incomplete, no numbers or no safetensors; a tokenizer that is damaged or another model's.
    """
    config = load_model_config(path_or_hub_id)
    if not config.is_encoder_decoder:
        raise UserError(
            f"{path_or_hub_id}: holds a {config.model_type} model, which is no encoder-decoder; give a translation model"
        )
    return load_with_tokenizer(AutoModelForSeq2SeqLM, path_or_hub_id, attn_implementation=attn_implementation)


def load_model_config(path_or_hub_id: str | Path) -> PreTrainedConfig:
    """The configuration of a folder or repository; a `UserError` where none is there, or it is damaged."""
    return _load(AutoConfig, path_or_hub_id, "model")


def load_with_tokenizer(
    model_class: Any, name: str | Path, *, attn_implementation: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """As `load_model_and_tokenizer`, for the Auto class of another kind of model."""
    model = load_whole(model_class, name, attn_implementation=attn_implementation)
    tokenizer = load_tokenizer(name)
    pieces, embeddings = len(tokenizer), model.get_input_embeddings().weight.shape[0]
    if pieces > embeddings:
        raise UserError(
            f"{name}: its tokenizer has {pieces:,} pieces, its model embeddings for {embeddings:,}; they do not belong "
            "together"
        )
    return model, tokenizer


def load_whole(model_class: Any, path_or_hub_id: str | Path, **options: Any) -> Any:
    """A model whose weights are all there and all numbers.

    Args:
        model_class: an Auto class, or a class of this package.
        path_or_hub_id: see `load_model_and_tokenizer`.
        options: of `from_pretrained`.
    """
    model, info = load_with_report(model_class, path_or_hub_id, **options)
    # from_pretrained only warns, and goes on with random weights.
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise UserError(
            f"{path_or_hub_id}: the weights lack {len(missing)} tensors of the model, the first is {missing[0]}"
        )
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise UserError(
                f"{path_or_hub_id}: its weights are damaged: {name} holds NaN or infinity; take an earlier checkpoint"
            )
    return model


def load_with_report(model_class: Any, path_or_hub_id: str | Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model, and the report of `from_pretrained` on weights that are missing, unexpected or of another shape."""
    return _load(model_class, path_or_hub_id, "model", use_safetensors=True, output_loading_info=True, **options)


def load_tokenizer(path_or_hub_id: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or repository; a `UserError` where none is there, or it is damaged."""
    return _load(AutoTokenizer, path_or_hub_id, "tokenizer")


def device_of(name: str | torch.device | None) -> torch.device:
    """The device of that name, or for None a GPU if CUDA has one, else the CPU.

    Raises:
        UserError: no name of a device, or of one on which nothing can be computed here.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name is None else name)
    except RuntimeError as error:
        raise UserError(f"device: {name!r} is no device; give cpu, cuda or cuda:1") from error
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # AssertionError: a torch without CUDA
        reason = one_line(str(error).partition("\n")[0])
        raise UserError(f"device: {name!r} was asked for, but cannot be used here: {reason}") from error
    return device


def _load(auto_class: Any, path_or_hub_id: str | Path, what: str, **options: Any) -> Any:
    name = str(located(path_or_hub_id))
    folder = Path(name)
    # A mistyped folder is not asked for on the Hub, whose ids are `name` or `owner/name`.
    if not folder.exists() and (name.count("/") > 1 or name.startswith((".", "/", "~", "runs/"))):
        raise UserError(f"{name!r}: no such folder; give the folder of a model, or a repository id on the Hub")
    try:
        return auto_class.from_pretrained(name, trust_remote_code=False, **options)
    # What a damaged file makes the libraries raise is of any kind, for a tokenizer a plain Exception.
    except Exception as error:
        if "use_safetensors" in options and not any(folder.glob("*.safetensors")):
            for pickled in folder.glob("*.bin"):
                raise UserError(
                    f"{name}: its weights are pickled ({pickled.name}), and a pickle can execute code: refused. If you trust "
                    "it, load it with Transformers once and save it with save_pretrained, which writes model.safetensors"
                ) from error
        kind = "" if isinstance(error, (OSError, ValueError, RuntimeError)) else f"{type(error).__name__}: "
        place = "" if folder.exists() else "no such folder here, and from the Hub: "
        raise UserError(f"{name}: its {what} cannot be loaded: {place}{kind}{one_line(error)}") from error
