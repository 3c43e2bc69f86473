"""MarianMT, ViT, GPT-2 and Llama of Transformers → a ReLUFormer of the same kind with the same weights, in memory or as
a folder.

And the attention of a ReLUFormer exchanged with its weights kept.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import (
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
    ViTForImageClassification,
)

from reluformer import ReLUFormerConfig, ReLUFormerDecoderConfig, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError, one_line
from reluformer.modeling_reluformer.attention_reluformer import NORMALIZED, POINTWISE
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig
from reluformer.modeling_reluformer.other_models import ATTENTION_NAME
from reluformer.translating.loading import Model, changed_config, load_model_config, load_weights, load_with_report
from reluformer.translating.shipped import located

Weights = dict[str, Tensor]

# Fields that mean the same in both configurations.
_MARIAN_FIELDS = (
    "vocab_size",
    "decoder_vocab_size",
    "max_position_embeddings",
    "d_model",
    "scale_embedding",
    "init_std",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "activation_function",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "share_encoder_decoder_embeddings",
    "tie_word_embeddings",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)
_DECODER_FIELDS = (
    "vocab_size",
    "max_position_embeddings",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "tie_word_embeddings",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
_VIT_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "layer_norm_eps",
    "image_size",
    "patch_size",
    "num_channels",
    "qkv_bias",
    "id2label",
    "label2id",
    "problem_type",
)
# Names of weights → ours.
_VIT_NAMES = (
    (r"\.attention\.o_proj\.", ".self_attn.out_proj."),
    (r"\.attention\.([qkv]_proj)\.", r".self_attn.\1."),
    (r"\.layernorm_before\.", ".input_layernorm."),
    (r"\.layernorm_after\.", ".post_attention_layernorm."),
    (r"\.patch_embeddings\.projection\.", ".patch_embeddings."),
    (r"^vit\.", "model."),
)
_GPT2_NAMES = (
    (r"^transformer\.wte\.", "model.embed_tokens."),
    (r"^transformer\.wpe\.", "model.embed_positions."),
    (r"^transformer\.ln_f\.", "model.norm."),
    (r"^transformer\.h\.", "model.layers."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.c_proj\.", ".self_attn.out_proj."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)


def marian_config(config: Any) -> ReLUFormerConfig:
    """The softmax ReLUFormer that is this Marian. Label smoothing is 0, as Marian's loss has none."""
    _require(config, is_decoder=False, is_encoder_decoder=True)
    return ReLUFormerConfig.from_preset("vanilla", label_smoothing=0.0, **_fields(config, _MARIAN_FIELDS))


def vit_config(config: Any) -> ReLUFormerVisionConfig:
    """The softmax model that is this ViT: with a class token, no norm of queries and keys, and ViT's initialisation."""
    start = {"pooling": "cls", "attention_qk_norm": False, "initialization": "normal"}
    return ReLUFormerVisionConfig.from_preset("softmax_vit", **start, **_fields(config, _VIT_FIELDS))


def gpt2_config(config: Any) -> ReLUFormerDecoderConfig:
    """The softmax decoder that is this GPT-2."""
    _require(config, add_cross_attention=False, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    return ReLUFormerDecoderConfig.from_preset(
        "gpt2",
        **_fields(config, _DECODER_FIELDS),
        intermediate_size=config.n_inner,
        hidden_act=config.activation_function,
        norm_eps=config.layer_norm_epsilon,
        init_std=config.initializer_range,
        embedding_dropout=config.embd_pdrop,
        dropout=config.resid_pdrop,
        attention_dropout=config.attn_pdrop,
    )


def llama_config(config: Any) -> ReLUFormerDecoderConfig:
    """The softmax decoder that is this Llama."""
    _require(config, sliding_window=None)  # which the library's caches keep to
    return ReLUFormerDecoderConfig.from_preset(
        "llama_relu",
        **_fields(config, (*_DECODER_FIELDS, "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act")),
        attention_activation="softmax",
        regularization_weight=0.0,
        norm_eps=config.rms_norm_eps,
        rope_parameters=copy.deepcopy(config.rope_parameters),
        init_std=config.initializer_range,
        attention_dropout=config.attention_dropout or 0.0,
        **dict.fromkeys(("query_key_bias", "value_bias", "output_bias"), config.attention_bias),
        ffn_bias=config.mlp_bias,
    )


def vit_weights(state_dict: Mapping[str, Tensor]) -> Weights:
    """The weights of a `ViTForImageClassification` under our names."""
    return {_renamed(name, _VIT_NAMES): tensor for name, tensor in state_dict.items()}


def gpt2_weights(state_dict: Mapping[str, Tensor]) -> Weights:
    """The weights of a `GPT2LMHeadModel` under our names; its projections are stored as (inputs, outputs)."""
    renamed = {}
    for name, tensor in state_dict.items():
        if re.search(r"\.(attn|mlp)\.c_\w+\.weight$", name):
            tensor = tensor.t().contiguous()
        name = _renamed(name, _GPT2_NAMES)
        if ".attn.c_attn." in name:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                renamed[name.replace(".attn.c_attn.", f".self_attn.{letter}_proj.")] = part.contiguous()
        else:
            renamed[name] = tensor
    return renamed


def llama_weights(state_dict: Mapping[str, Tensor]) -> Weights:
    """The weights of a `LlamaForCausalLM` under our names."""
    return {name.replace(".self_attn.o_proj.", ".self_attn.out_proj."): tensor for name, tensor in state_dict.items()}


@dataclass(frozen=True)
class ForeignModel:
    """A kind of model that can be converted: its name in messages, its class in Transformers, and both parts of it to
    ours."""

    name: str
    model_class: type[PreTrainedModel]
    config: Callable[[Any], AttentionConfig]
    weights: Callable[[Mapping[str, Tensor]], Weights]


# By the model type of the checkpoint.
FOREIGN_MODELS = {
    "marian": ForeignModel("Marian", MarianMTModel, marian_config, dict),  # whose names are ours
    "vit": ForeignModel("ViT", ViTForImageClassification, vit_config, vit_weights),
    "gpt2": ForeignModel("GPT-2", GPT2LMHeadModel, gpt2_config, gpt2_weights),
    "llama": ForeignModel("Llama", LlamaForCausalLM, llama_config, llama_weights),
}


def convert_model(foreign: PreTrainedModel, changes: Mapping[str, Any] | None = None) -> tuple[Model, list[str]]:
    """A Marian, ViT, GPT-2 or Llama in memory → a ReLUFormer in evaluation mode with its weights, dtype and settings of
    generation. The two may share memory.

    `changes` are fields of the configuration that are to differ, and `preset`; see `changed_config`.

    Returns:
        The model, and the names of its parameters that are new and untrained.

    Raises:
        UserError: a value that ReLUFormer refuses, such as trained positions of a Marian or a sliding window.
    """
    kind = FOREIGN_MODELS[foreign.config.model_type]
    config = converted_config(foreign.config)
    if changes:
        config = changed_config(config, changes)
    weights = kind.weights(foreign.state_dict())
    if isinstance(config, ReLUFormerDecoderConfig) and config.tie_word_embeddings:
        del weights["lm_head.weight"]
    model, new = load_weights(weights, config, dtype=foreign.dtype)
    if foreign.can_generate():
        model.generation_config = copy.deepcopy(foreign.generation_config)
    return model, new


def converted_config(config: PreTrainedConfig) -> AttentionConfig:
    """The configuration of the softmax ReLUFormer that is the model of this one; errors as of `convert_model`."""
    kind = FOREIGN_MODELS[config.model_type]
    if config._attn_implementation == ATTENTION_NAME:
        raise UserError(
            f"this {kind.name} was trained with ReLU attention, which would become softmax; convert one without it"
        )
    try:
        return kind.config(config)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(f"this {kind.name} cannot become a ReLUFormer: {one_line(error)}") from error


def load_foreign(source: str | Path, config: PreTrainedConfig) -> tuple[PreTrainedModel, list[str]]:
    """A checkpoint in its own class, in the dtype it was saved in, and notes on what does not carry over.

    A ViT may lack its classifier; weights that the class has no use for, such as ViT's pooler, are left out by
    Transformers.

    Raises:
        UserError: weights that are pickled, damaged or incomplete.
    """
    kind = FOREIGN_MODELS[config.model_type]
    foreign, info = load_with_report(kind.model_class, source, config=config, dtype="auto")
    lacking = sorted(name for name in info["missing_keys"] if not name.startswith("classifier."))
    if lacking:
        raise UserError(
            f"{source}: the weights lack {len(lacking)} tensors of a {kind.name}, the first is {lacking[0]}"
        )
    if not info["missing_keys"]:
        return foreign, []
    return foreign, ["the checkpoint has no classifier: it is new and untrained"]


def _fields(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names}


def _require(config: PreTrainedConfig, **ours: bool | None) -> None:
    for name, value in ours.items():
        if (other := getattr(config, name, value)) != value:
            raise ValueError(f"a ReLUFormer has no {name}={other}")


def _renamed(name: str, renamings: tuple[tuple[str, Any], ...]) -> str:
    for pattern, replacement in renamings:
        name = re.sub(pattern, replacement, name)
    return name


# Folders

# Of a tokenizer or an image processor; copied as they are, without the library that reads them.
_COPIED = ("*token*.json", "*.model", "*vocab.json", "merges.txt", "*.spm", "*.jinja", "preprocessor_config.json")
# AutoTokenizer finds these tokenizers by the kind of model, unless their settings name the class.
_CLASSES = {"marian": ({"source.spm"}, "MarianTokenizer"), "gpt2": ({"merges.txt", "tokenizer.json"}, "GPT2Tokenizer")}


def convert(
    source: str | Path, target: str | Path, *, attention: str | None = None, overwrite: bool = False
) -> tuple[Model, list[str]]:
    """Writes a model as a ReLUFormer, with its tokenizer or image processor.

    Args:
        source: folder or Hub id of a MarianMT, ViT, GPT-2 or Llama checkpoint, or of a ReLUFormer whose attention is to
            be exchanged.
        target: folder to write.
        attention: a preset or an activation, with the same weights, which needs fine-tuning. None keeps the attention
            of the source, and the converted model computes what the other one does.
        overwrite: replace a model that is in `target` already; other files there stay.

    Returns:
        The model as it was saved, and a line for each thing that did not carry over unchanged.

    Raises:
        UserError: a source that is no such model, one that ReLUFormer cannot represent, or a folder that is in use.
    """
    source, target = located(source), Path(target)
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
        origin = Path(snapshot_download(str(source), allow_patterns=list(_COPIED)))
    copied = {path.name: path for pattern in _COPIED for path in origin.glob(pattern)}
    for name, path in copied.items():
        shutil.copyfile(path, folder / name)
    marks, tokenizer_class = _CLASSES.get(model_type, (set(), ""))
    if marks & copied.keys():
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        settings = {"tokenizer_class": tokenizer_class, **settings}
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if {"source.spm", "tokenizer.model", "merges.txt", "tokenizer.json", "preprocessor_config.json"}.isdisjoint(copied):
        return [f"no tokenizer or image processor is in {source}: none was copied"]
    return []
