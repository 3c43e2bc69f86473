"""Loading a model and its tokenizer from a folder or the Hub, as it is or under a changed configuration, with errors
for a user.

Weights are read from safetensors alone, never from pickles, which can hold code; code in a folder or repository is not
executed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
    ReLUFormerForImageClassification,
)
from reluformer.configuration.errors import UserError, one_line
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig
from reluformer.translating.shipped import located

Model = ReLUFormerForConditionalGeneration | ReLUFormerForCausalLM | ReLUFormerForImageClassification
MODEL_CLASSES = {model.config_class: model for model in Model.__args__}
# The weights were made for these: what they say cannot change without them.
_FIXED_BY_THE_WEIGHTS = (
    "vocab_size",
    "decoder_vocab_size",
    "d_model",
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "num_labels",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "ffn_type",
    "ffn_bias",
    "share_encoder_decoder_embeddings",
    "tie_word_embeddings",
    "position_embedding",
    "normalization",
    "final_norm",
    "norm_type",
    "query_key_bias",
    "value_bias",
    "output_bias",
    "qkv_bias",
    "image_size",
    "patch_size",
    "num_channels",
    "pooling",
    "pooler_act",
)
# Modules that a configuration adds to what Marian, ViT, GPT-2, Llama and the plain ReLUFormer have. A gated FFN has a
# gate of its own, which is not optional.
_OPTIONAL_MODULES = ("log_gamma", "gate_proj", "q_norm", "k_norm", "output_norm", "ffn_layer_norm")


def load_model_and_tokenizer(
    path_or_hub_id: str | Path, *, model_class: Any = AutoModelForSeq2SeqLM, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model, by default a sequence-to-sequence model, and its tokenizer.

    Args:
        path_or_hub_id: folder written by `save_pretrained` (a run folder, a checkpoint), name of a model that comes
            with the package, or repository id on the Hub.
        model_class: the Auto class of another kind of model.
        options: of `from_pretrained`, such as `attn_implementation`; None takes the model's default.

    Raises:
        UserError: no such folder or repository, no model in it, a model that is not an encoder-decoder, weights that
            are damaged, incomplete, no numbers or no safetensors; a tokenizer that is damaged or another model's.
    """
    kind = load_model_config(path_or_hub_id)
    if model_class is AutoModelForSeq2SeqLM and not kind.is_encoder_decoder:
        raise UserError(f"{path_or_hub_id}: a {kind.model_type} model is no encoder-decoder; give a translation model")
    model = load_whole(model_class, path_or_hub_id, **options)
    tokenizer = load_tokenizer(path_or_hub_id)
    require_embeddings(path_or_hub_id, tokenizer, model.get_input_embeddings().weight.shape[0])
    if model_class is AutoModelForSeq2SeqLM:
        _require_special_tokens(path_or_hub_id, model, tokenizer)
    return model, tokenizer


def _require_special_tokens(name: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises a `UserError` where decoding or padding would fail for want of a token."""
    if tokenizer.pad_token is None:
        raise UserError(f"{name}: its tokenizer names no pad_token; restore tokenizer_config.json, or name one there")
    pieces = getattr(model.config, "decoder_vocab_size", None) or model.config.vocab_size
    for field in ("eos_token_id", "decoder_start_token_id"):
        tokens = getattr(model.generation_config, field)
        for token in tokens if isinstance(tokens, list) else [tokens]:
            if token is not None and (not isinstance(token, int) or not 0 <= token < pieces):
                expected = f"expected the number of one of the {pieces:,} pieces, or the model's config.json decides"
                raise UserError(f"{name}: generation_config.json: {field} is {token!r}; {expected}")


def load_model_config(path_or_hub_id: str | Path) -> PreTrainedConfig:
    """The configuration of a folder or repository; a `UserError` where none is there, or it is damaged."""
    return _load(AutoConfig, path_or_hub_id, "model")


def load_translation_config(path_or_hub_id: str | Path) -> ReLUFormerConfig:
    """The configuration of a ReLUFormer for translation, to go on from; a `UserError` where it is another kind of
    model."""
    config: Any = load_model_config(path_or_hub_id)
    if not isinstance(config, ReLUFormerConfig):
        raise UserError(
            f"{path_or_hub_id}: is a {config.model_type!r} model, and a ReLUFormer for translation is needed; "
            f"`reluformer convert --from {path_or_hub_id} --to FOLDER` makes one of a Marian"
        )
    return config


def require_embeddings(name: str | Path, tokenizer: PreTrainedTokenizerBase, embeddings: int) -> None:
    """Raises a `UserError` where a model has embeddings for fewer pieces than its tokenizer."""
    if (pieces := len(tokenizer)) > embeddings:
        differ = f"its tokenizer has {pieces:,} pieces, its model embeddings for {embeddings:,}"
        raise UserError(f"{name}: {differ}; they do not belong together")


def load_whole(model_class: Any, path_or_hub_id: str | Path, **options: Any) -> Any:
    """A model of an Auto class or of this package, whose weights are all there and all numbers; options of
    `from_pretrained`."""
    model, info = load_with_report(model_class, path_or_hub_id, **options)
    if missing := sorted(info["missing_keys"]):  # from_pretrained only warns, and goes on with random weights
        raise UserError(
            f"{path_or_hub_id}: the weights lack {len(missing)} tensors of the model, the first is {missing[0]}"
        )
    for name, held in model.state_dict().items():
        if not torch.isfinite(held).all():
            damage = f"{name} holds NaN or infinity"
            raise UserError(f"{path_or_hub_id}: its weights are damaged: {damage}; take an earlier checkpoint")
    return model


def load_with_report(model_class: Any, path_or_hub_id: str | Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model, and the report of `from_pretrained` on weights that are missing, unexpected or of another shape."""
    return _load(model_class, path_or_hub_id, "model", use_safetensors=True, output_loading_info=True, **options)


def changed_config(config: AttentionConfig, changes: Mapping[str, Any]) -> AttentionConfig:
    """The config of an existing model with other values in some fields, `preset` among them.

    A `preset` replaces the attention, regulariser included, but for a gate and a learnable γ; an `attention_activation`
    alone takes the scaling and the regularisation that are its defaults, unless these are given too.

    Raises:
        UserError: an unknown field or preset, a bad value, or a size that the existing weights have decided.
    """
    changes, kind = dict(changes), type(config)
    preset = changes.pop("preset", None)
    for name in _FIXED_BY_THE_WEIGHTS:
        if name in changes and hasattr(config, name) and changes[name] != getattr(config, name):
            raise UserError(f"{name}: {changes[name]!r} does not fit the weights, made for {getattr(config, name)!r}")
    kept = {field.name: getattr(config, field.name) for field in dataclasses.fields(kind)}
    if preset is not None:
        fields = set().union(*kind.presets.values())
        replaced = {name for name in fields if name.startswith("attention_")} | {"regularization_weight"}
        kept = {name: value for name, value in kept.items() if name not in replaced}
    elif changes.get("attention_activation", config.attention_activation) != config.attention_activation:
        kept |= {"attention_scaling": None, "regularization_weight": None}  # the activation's defaults, no preset's
    try:
        # without a preset every field of it is kept or changed, so that the name does not matter
        return kind.from_preset(preset or next(iter(kind.presets)), **{**kept, **changes})
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(one_line(error)) from error


def load_weights(
    source: str | Path | Mapping[str, Tensor], config: AttentionConfig, *, dtype: torch.dtype
) -> tuple[Model, list[str]]:
    """A model in evaluation mode with this configuration and the weights of another.

    Args:
        source: folder or Hub id of a ReLUFormer, whose generation settings come with it, or tensors by name.

    Returns:
        The model, and the names of its parameters that the weights lack and that were drawn anew: those of norms and
        gates of attention and FFN that the other model did not have.

    Raises:
        UserError: weights left over, lacking or of another shape; a source that cannot be loaded.
    """
    kind = MODEL_CLASSES[type(config)]
    options: dict[str, Any] = {"config": config, "dtype": dtype, "ignore_mismatched_sizes": True}  # reported below
    if isinstance(source, Mapping):
        model, info = kind.from_pretrained(None, state_dict=dict(source), output_loading_info=True, **options)
    else:
        model, info = load_with_report(kind, source, **options)
    missing = sorted(info["missing_keys"])
    other_shapes = [f"{name} {list(saved)} → {list(wanted)}" for name, saved, wanted in info["mismatched_keys"]]
    needed = [name for name in missing if ".mlp." in name or set(_OPTIONAL_MODULES).isdisjoint(name.split("."))]
    problems = [*needed, *info["unexpected_keys"], *other_shapes]
    if problems:
        wrong = f"{len(problems)} tensors are missing, left over or of another shape, the first: {min(problems)}"
        raise UserError(f"the weights do not fit the configuration: {wrong}")
    return model, missing


def load_tokenizer(path_or_hub_id: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or repository; a `UserError` where none is there, or it is damaged."""
    return _load(AutoTokenizer, path_or_hub_id, "tokenizer")


def _load(auto_class: Any, path_or_hub_id: str | Path, what: str, **options: Any) -> Any:
    name = str(located(path_or_hub_id))
    folder = Path(name)
    try:
        if "use_safetensors" in options:
            _check_indices(folder)
        return auto_class.from_pretrained(name, trust_remote_code=False, **options)
    # What a damaged file makes the libraries raise is of any kind, for a tokenizer a plain Exception.
    except Exception as error:
        if "use_safetensors" in options and not any(folder.glob("*.safetensors")):
            for pickled in folder.glob("*.bin"):
                raise UserError(
                    f"{name}: its weights are pickled ({pickled.name}), and a pickle can execute code: refused. If you "
                    "trust it, load it with Transformers once and save it with save_pretrained, which writes "
                    "model.safetensors"
                ) from error
        kind = "" if isinstance(error, (OSError, ValueError, RuntimeError)) else f"{type(error).__name__}: "
        reason = "" if folder.exists() else "no such folder here, and from the Hub: "
        if what == "tokenizer" and folder.is_dir() and not (folder / "tokenizer.json").is_file():
            reason = "there is no tokenizer.json in it: "
        raise UserError(f"{name}: its {what} cannot be loaded: {reason}{kind}{one_line(error)}") from error


def _check_indices(folder: Path) -> None:
    """Raises a `ValueError` where an index of weights names a file of another folder, which Transformers would read."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values():
            if Path(name).name != name:
                raise ValueError(
                    f"{index.name} names {name!r}, and an index may only name files in its own folder; put the file "
                    "there"
                )
