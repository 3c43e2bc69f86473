"""MarianMT, ViT, GPT-2 and Llama checkpoints as ReLUFormers, and the attention of a model exchanged with its weights kept."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import GPT2Config, MarianConfig, MarianMTModel, ViTConfig

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForConditionalGeneration,
    ReLUFormerVisionConfig,
)
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.whole_files import holds_one, require_own, whole_folder
from reluformer.modeling_reluformer.attention_reluformer import NORMALIZED, POINTWISE
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig
from reluformer.training.decoder_conversion import DECODER_SOURCES, convert_decoder_model, load_decoder
from reluformer.training.foreign_weights import config_of_preset, load_foreign, require_all_weights
from reluformer.training.loading import IMAGE_PROCESSOR_FILE, TOKENIZER_FILES, load_model_config
from reluformer.training.run.initialization import (
    Model,
    changed_config,
    load_weights,
    model_with_weights,
)
from reluformer.training.vit_conversion import convert_vit_model, load_vit

# Fields that mean the same in both configurations.
_SAME_FIELDS = (
    "vocab_size",
    "decoder_vocab_size",
    "max_position_embeddings",
    "d_model",
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
    "init_std",
    "scale_embedding",
    "share_encoder_decoder_embeddings",
    "tie_word_embeddings",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)
# Of the files in a model's folder, which --overwrite may remove.
_SUFFIXES = (".json", ".safetensors", ".py", ".spm", ".jinja")
_POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


@dataclass(frozen=True)
class Conversion:
    """What a conversion wrote, and what one should know about it.

    folder: of the model. model: as it was saved. notes: one line for each thing that did not carry over unchanged.
    """

    folder: Path
    model: Model
    notes: tuple[str, ...]


def convert(
    source: str | Path, target: str | Path, *, attention: str | None = None, overwrite: bool = False
) -> Conversion:
    """Writes a model as a ReLUFormer, with its tokenizer or image processor.

    Args:
        source: folder or Hub id of a MarianMT, ViT, GPT-2 or Llama checkpoint, or of a ReLUFormer whose attention is to be
            exchanged.
        target: folder to write; it appears whole or not at all.
        attention: a preset or an activation. None keeps the attention of the source, which is a softmax in all foreign models:
            the converted model then computes what the other one does. Another one keeps the weights and needs fine-tuning.
        overwrite: replace a model that is in `target` already.

    Raises:
        UserError: a source that is no such model, one that ReLUFormer cannot represent, or a folder that is in use,
            or holds other files than a model's.
    """
    target = Path(target)
    _check_target(source, target, overwrite)
    config: Any = load_model_config(source)
    copied = TOKENIZER_FILES
    if config.model_type == MarianConfig.model_type:
        marian = _load_marian(source, config)
        notes = _notes(marian.config)
        model, new = _convert_model(marian, attention)
    elif config.model_type == ViTConfig.model_type:
        copied = (IMAGE_PROCESSOR_FILE,)
        changes = None if attention is None else _attention_changes(attention, ReLUFormerVisionConfig)
        vit, notes = load_vit(source, config)
        model, new = convert_vit_model(vit, changes)
    elif config.model_type in DECODER_SOURCES:
        changes = None if attention is None else _attention_changes(attention, ReLUFormerDecoderConfig)
        model, new = convert_decoder_model(load_decoder(source, config), changes)
        notes = []
    elif isinstance(config, AttentionConfig):
        if attention is None:
            choices = ", ".join(attentions_of(type(config)))
            raise UserError(f"{source}: is a ReLUFormer already; name the attention it shall have: {choices}")
        changed = changed_config(config, _attention_changes(attention, type(config)))
        model, new = load_weights(source, changed, dtype=config.dtype or torch.float32)
        notes = []
        copied = (IMAGE_PROCESSOR_FILE,) if isinstance(config, ReLUFormerVisionConfig) else TOKENIZER_FILES
    else:
        raise UserError(
            f"{source}: is a {config.model_type!r} model; only MarianMT, ViT, GPT-2, Llama and ReLUFormer models are converted"
        )
    notes += _change_notes(new)

    with whole_folder(target) as folder:
        notes += _copy_preprocessor(source, folder, copied, config.model_type)
        model.save_pretrained(folder)
    return Conversion(target, model, tuple(notes))


def marian_config(config: MarianConfig) -> ReLUFormerConfig:
    """The softmax ReLUFormer that is this Marian.

    Label smoothing is 0, as Marian's loss has none.

    Raises:
        UserError: a decoder without encoder, a decoder vocabulary of another size in a shared embedding, or a value that
            ReLUFormer refuses.
    """
    if config.is_decoder or not config.is_encoder_decoder:
        raise UserError("a Marian decoder without encoder (is_decoder=True) cannot become a ReLUFormer, which has both")
    fields = {name: getattr(config, name) for name in _SAME_FIELDS}
    return config_of_preset(ReLUFormerConfig, "Marian", "vanilla", label_smoothing=0.0, **fields)


def convert_marian_model(marian: MarianMTModel, *, attention: str | None = None) -> ReLUFormerForConditionalGeneration:
    """A Marian in memory → a ReLUFormer in evaluation mode with its weights, dtype and generation settings.

    The two may share memory.

    Args:
        marian: any `MarianMTModel`.
        attention: as in `convert`.

    Raises:
        UserError: what `marian_config` raises; position tables that are not the sinusoidal ones.
    """
    return _convert_model(marian, attention)[0]


def _convert_model(
    marian: MarianMTModel, attention: str | None
) -> tuple[ReLUFormerForConditionalGeneration, list[str]]:
    config = marian_config(marian.config)
    if attention is not None:
        config = changed_config(config, _attention_changes(attention, ReLUFormerConfig))
    weights = {name: tensor for name, tensor in marian.state_dict().items() if name not in _POSITION_TABLES}
    model, new = model_with_weights(config, weights, dtype=marian.dtype)
    _check_positions(marian, model)
    model.generation_config = copy.deepcopy(marian.generation_config)
    return model, new


def _attention_changes(attention: str, kind: type[AttentionConfig]) -> dict[str, Any]:
    if attention in kind.presets:
        return {"preset": attention}
    if attention in (*POINTWISE, *NORMALIZED):
        return {"attention_activation": attention}
    raise UserError(f"attention: {attention!r} is unknown; choose one of {', '.join(attentions_of(kind))}")


def attentions_of(kind: type[AttentionConfig]) -> tuple[str, ...]:
    """What `attention` may name for a model with such a configuration."""
    return tuple(dict.fromkeys((*kind.presets, *POINTWISE, *NORMALIZED)))


def _load_marian(source: str | Path, config: MarianConfig) -> MarianMTModel:
    """The checkpoint in Marian's own class, in the dtype it was saved in, with nothing drawn at random."""
    marian, info = load_foreign(MarianMTModel, source, config)
    require_all_weights(source, info, "MarianMT")
    return marian


def _check_positions(marian: MarianMTModel, model: ReLUFormerForConditionalGeneration) -> None:
    """Both stacks' tables are computed, never saved: one that was saved with other values cannot be taken over."""
    for part in ("encoder", "decoder"):
        theirs = getattr(marian.model, part).embed_positions.weight
        ours = getattr(model.model, part).embed_positions.weight
        tolerance = 4 * torch.finfo(theirs.dtype).eps
        if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=0.0, atol=max(tolerance, 1e-6)):
            raise UserError(
                f"the {part}'s position table is not the sinusoidal one; ReLUFormer has no trained positions, so this "
                "checkpoint cannot be converted"
            )


def _notes(config: MarianConfig) -> list[str]:
    dropped = {name: getattr(config, name) for name in ("encoder_layerdrop", "decoder_layerdrop")}
    return [
        f"{name}={value} is dropped: ReLUFormer trains without layer drop; outputs are the same"
        for name, value in dropped.items()
        if value > 0
    ]


def _change_notes(new: list[str]) -> list[str]:
    return [f"{len(new)} parameters are new and untrained, the first is {new[0]}"] if new else []


def _check_target(source: str | Path, target: Path, overwrite: bool) -> None:
    here, there = Path(source).resolve(), target.resolve()
    if Path(source).is_dir() and (here == there or there in here.parents):
        raise UserError(f"{target}: holds the source; give another folder")
    if holds_one(target, "model", ["config.json"], overwrite=overwrite):
        names = [path.name for path in sorted(target.iterdir()) if not path.is_file() or path.suffix not in _SUFFIXES]
        require_own(target, names)


def _copy_preprocessor(source: str | Path, folder: Path, names: Sequence[str], model_type: str) -> list[str]:
    """Copies the files of a tokenizer or image processor as they are; none of them is opened by the library they are for."""
    what = "tokenizer" if names is TOKENIZER_FILES else "image processor"
    if not (origin := Path(source)).is_dir():
        try:
            origin = Path(snapshot_download(str(source), allow_patterns=list(names)))
        except (OSError, ValueError) as error:
            raise UserError(f"{source}: its {what} cannot be loaded: {one_line(error)}") from error
    found = [name for name in names if (origin / name).is_file()]
    for name in found:
        shutil.copyfile(origin / name, folder / name)
    if "source.spm" in found:
        _name_tokenizer_class(folder / "tokenizer_config.json", "MarianTokenizer")
    elif model_type == GPT2Config.model_type and "tokenizer.json" in found:
        _name_tokenizer_class(folder / "tokenizer_config.json", "GPT2Tokenizer")
    whole = {"source.spm", "tokenizer.json", IMAGE_PROCESSOR_FILE}
    return [] if whole & set(found) else [f"no {what} is in {source}: none was copied"]


def _name_tokenizer_class(path: Path, name: str) -> None:
    """AutoTokenizer finds Marian's and GPT-2's tokenizers by the kind of model, unless their settings name the class."""
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if "tokenizer_class" not in settings:
        settings = {**settings, "tokenizer_class": name}
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
