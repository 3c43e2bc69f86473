"""Loading a model and its tokenizer from a folder or the Hub, with errors for a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import CHAT_TEMPLATE_FILE

from reluformer.configuration.errors import UserError, one_line
from reluformer.modeling_reluformer.registration import register

TOKENIZER_FILES = (
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "target_vocab.json",
    "source.spm",
    "target.spm",
    CHAT_TEMPLATE_FILE,
)
IMAGE_PROCESSOR_FILE = "preprocessor_config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")

register()  # the models, with the Auto classes


def load_model_and_tokenizer(
    path_or_hub_id: str | Path, *, attn_implementation: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A sequence-to-sequence model and its tokenizer. Code out of the folder or repository is never executed.

    Weights are read from safetensors alone, never from pickles, which can hold code.

    Args:
        path_or_hub_id: folder written by `save_pretrained` (a run folder, a checkpoint), or a repository id on the Hub.
        attn_implementation: how attention is computed; None takes the model's default.

    Raises:
        UserError: no such folder or repository, no model in it, a model that is not an encoder-decoder, weights that are
            damaged, incomplete, no numbers or no safetensors; a tokenizer that is damaged or another model's.
    """
    name = str(path_or_hub_id)
    config = load_model_config(name)
    if not config.is_encoder_decoder:
        raise UserError(
            f"{name}: holds a {config.model_type} model, which is no encoder-decoder; give a translation model"
        )
    return _with_tokenizer(AutoModelForSeq2SeqLM, name, attn_implementation)


def load_language_model(
    path_or_hub_id: str | Path, *, attn_implementation: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A decoder-only language model and its tokenizer; see `load_model_and_tokenizer`."""
    name = str(path_or_hub_id)
    if not is_decoder_only(name):
        raise UserError(f"{name}: holds no language model that is a decoder alone; give one such as gpt2")
    return _with_tokenizer(AutoModelForCausalLM, name, attn_implementation)


def is_decoder_only(path_or_hub_id: str | Path) -> bool:
    """Whether a folder or repository holds a language model that is a decoder alone.

    Raises:
        UserError: no such folder or repository, or no model in it.
    """
    config = load_model_config(path_or_hub_id)
    return not config.is_encoder_decoder and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def load_image_classifier(path_or_hub_id: str | Path, *, attn_implementation: str | None = None) -> PreTrainedModel:
    """A classifier of pictures; see `load_model_and_tokenizer`."""
    return load_whole(AutoModelForImageClassification, path_or_hub_id, attn_implementation=attn_implementation)


def is_image_classifier(path_or_hub_id: str | Path) -> bool:
    """Whether a folder or repository holds a classifier of pictures; errors as of `is_decoder_only`."""
    return type(load_model_config(path_or_hub_id)) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING


def load_model_config(path_or_hub_id: str | Path) -> PreTrainedConfig:
    """The configuration of a folder or repository; its code is never executed.

    Raises:
        UserError: no such folder or repository, none is there, or it is damaged.
    """
    _check_place(str(path_or_hub_id), "config.json")
    return _load(AutoConfig, str(path_or_hub_id), "model")


def _with_tokenizer(
    model_class: Any, name: str, attn_implementation: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model = load_whole(model_class, name, attn_implementation=attn_implementation)
    tokenizer = load_tokenizer(name)
    pieces, embeddings = len(tokenizer), model.get_input_embeddings().weight.shape[0]
    if pieces > embeddings:
        raise UserError(
            f"{name}: its tokenizer has {pieces:,} pieces, its model embeddings for {embeddings:,}; they do not belong "
            "together"
        )
    return model, tokenizer


def load_whole(model_class: Any, path_or_hub_id: str | Path, *, attn_implementation: str | None = None) -> Any:
    """A model whose weights are all there and all numbers, from safetensors alone; code in its folder is never executed.

    Args:
        model_class: an Auto class, or a class of this package.
        path_or_hub_id, attn_implementation: see `load_model_and_tokenizer`.

    Raises:
        UserError: weights that are damaged, incomplete, no numbers or no safetensors.
    """
    name = str(path_or_hub_id)
    require_safetensors(name)
    model, info = _load(
        model_class,
        name,
        "model",
        attn_implementation=attn_implementation,
        use_safetensors=True,
        output_loading_info=True,
    )
    # from_pretrained only warns, and goes on with random weights.
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise UserError(f"{name}: the weights lack {len(missing)} tensors of the model, the first is {missing[0]}")
    for tensor_name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise UserError(
                f"{name}: its weights are damaged: {tensor_name} holds NaN or infinity; take an earlier checkpoint"
            )
    return model


def load_tokenizer(path_or_hub_id: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or repository; its code is never executed.

    Raises:
        UserError: no such folder or repository, none is there, or it is damaged.
    """
    _check_place(str(path_or_hub_id))
    return _load(AutoTokenizer, str(path_or_hub_id), "tokenizer")


def require_safetensors(path_or_hub_id: str | Path) -> None:
    """Raises a `UserError` for a folder whose weights are missing, or pickled; a repository on the Hub is not asked."""
    path = Path(path_or_hub_id)
    if not path.is_dir() or any((path / name).is_file() for name in _WEIGHTS):
        return
    if pickles := sorted(found.name for found in path.glob("*.bin")):
        raise UserError(
            f"{path_or_hub_id}: its weights are pickled ({pickles[0]}), and a pickle can execute code: refused. If you trust "
            "it, load it with Transformers once and save it with save_pretrained, which writes model.safetensors"
        )
    raise UserError(f"{path_or_hub_id}: holds no weights, neither {' nor '.join(_WEIGHTS)}; give a complete model")


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


def _check_place(name: str, holds: str | None = None) -> None:
    """Raises a `UserError` for what is meant as a folder, with the file `holds` in it, and is none; the Hub is not asked."""
    path = Path(name)
    if path.is_file():
        raise UserError(f"{name}: is a file; give the folder of a model")
    if path.is_dir():
        if holds is not None and not (path / holds).is_file():
            raise UserError(f"{name}: holds no {holds}; give a folder written by save_pretrained")
        return
    # A Hub id is `name` or `owner/name`; anything else can only be meant as a folder, and so can what a model would hold.
    looks_local = name.count("/") > 1 or name.startswith((".", "/", "~", "runs/")) or "\\" in name
    if looks_local or (path.parent != Path() and (path.parent / "config.json").is_file()):
        raise UserError(f"{name!r}: no such folder; give the folder of a model, or a repository id on the Hub")


def _load(auto_class: Any, name: str, what: str, **options: Any) -> Any:
    try:
        return auto_class.from_pretrained(name, trust_remote_code=False, **options)
    # What a damaged file makes the libraries raise is of any kind, for a tokenizer a plain Exception.
    except Exception as error:
        kind = "" if isinstance(error, (OSError, ValueError, RuntimeError)) else f"{type(error).__name__}: "
        place = "" if Path(name).exists() else "no such folder here, and from the Hub: "
        raise UserError(f"{name}: its {what} cannot be loaded: {place}{kind}{one_line(error)}") from error
