"""A translator from a folder without Transformers, of which the import takes longer than a short translation.

It takes what `save_pretrained` writes of a model that `FastTranslationModel` computes, and of a tokenizer that is nothing but its
tokenizer.json. For anything else `quick_translator` is None, and Transformers loads the folder, with its own messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from reluformer.modeling_reluformer.attention_reluformer import ATTENTION_SCALINGS, LARGEST_ALPHA
from reluformer.modeling_reluformer.fused.compiled.library import library
from reluformer.training.fast_translation import SavedModel, reason_against
from reluformer.training.shipped import located
from reluformer.training.translation import Translator

# Settings of a tokenizer that change no ids and no text here, and those that are computed.
_TOKENIZER_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_DESCRIBING = ("backend", "model_input_names", "model_max_length", "source_language", "target_language", "text_unit")
_DESCRIBING += ("is_local", "local_files_only")  # of a tokenizer that was loaded and saved again
# Of config.json, beside what `reason_against` and `expected_shapes` read.
_READ = ("attention_scaling", "attention_gamma", "attention_alpha", "scale_embedding", "max_position_embeddings")
_DTYPES = (torch.float32, torch.bfloat16)  # of weights; they are computed in float32
_MARKS = ("bos_token", "eos_token", "pad_token", "unk_token")
_COMPUTED = ("tokenizer_class", "clean_up_tokenization_spaces", "split_special_tokens", "moses", *_MARKS)


class SavedTokenizer:
    """A tokenizer.json, with what `Translator` asks of a tokenizer of Transformers."""

    def __init__(self, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
        tokenizer.encode_special_tokens = settings.get("split_special_tokens", False)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self.init_kwargs = tokenizer, settings
        self.eos_token_id = tokenizer.token_to_id(settings["eos_token"])
        self.pad_token_id = tokenizer.token_to_id(settings["pad_token"])

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def __call__(self, texts: Sequence[str], verbose: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]}

    def batch_decode(self, ids: Tensor, skip_special_tokens: bool) -> list[str]:
        return self._tokenizer.decode_batch(ids.tolist(), skip_special_tokens)


def quick_translator(
    path_or_hub_id: str | Path, *, device: str | None = None, attn_implementation: str | None = None, **options: Any
) -> Translator | None:
    """As `Translator.from_pretrained`; None where Transformers must load the model, or tell what is wrong with it."""
    on_cpu = device == "cpu" or (device is None and not torch.cuda.is_available())
    if not on_cpu or attn_implementation is not None or library(large=False) is None:
        return None
    folder = Path(located(path_or_hub_id))
    try:
        model, tokenizer = _saved_model(folder), _saved_tokenizer(folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError):
        return None
    if model is None or tokenizer is None or len(tokenizer) > model.config.vocab_size:
        return None
    return Translator(model, tokenizer, **options)


class _Settings(SimpleNamespace):
    """A file of settings, with attributes as the class of Transformers has them."""

    @classmethod
    def of(cls, path: Path) -> _Settings:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def to_diff_dict(self) -> dict[str, Any]:
        return vars(self)


def _saved_model(folder: Path) -> SavedModel | None:
    config, generation = _Settings.of(folder / "config.json"), _Settings.of(folder / "generation_config.json")
    if config.model_type != "reluformer" or not vars(config).keys() >= {*_READ} or not _is_sound(config):
        return None
    # before the weights, which Transformers would read again
    if reason_against(SavedModel(config, generation, {}), generation.to_diff_dict()) is not None:
        return None
    weights = load_file(folder / "model.safetensors")
    if (shared := weights.pop("model.shared.weight", None)) is not None:
        weights |= {f"model.{side}.embed_tokens.weight": shared for side in ("encoder", "decoder")}
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.decoder.embed_tokens.weight"]
    return SavedModel(config, generation, weights) if _are_whole(weights, config) else None


def _is_sound(config: _Settings) -> bool:
    heads = config.encoder_attention_heads, config.decoder_attention_heads
    scalings = ("none",) if config.attention_activation == "softmax" else ATTENTION_SCALINGS
    of_rows = config.attention_gamma > 0 and 0 <= config.attention_alpha <= LARGEST_ALPHA
    are_heads = all(n > 0 and config.d_model % n == 0 for n in heads)
    return config.attention_scaling in scalings and of_rows and are_heads and config.max_position_embeddings > 0


def _are_whole(weights: dict[str, Tensor], config: _Settings) -> bool:
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    are_numbers = (weight.dtype in _DTYPES and torch.isfinite(weight).all() for weight in weights.values())
    return shapes == expected_shapes(config) and all(are_numbers)


def expected_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Of the weights of a model that `reason_against` has nothing against, by their names."""
    width = config.d_model
    shapes: dict[str, tuple[int, ...]] = {
        "model.encoder.embed_tokens.weight": (config.vocab_size, width),
        "model.decoder.embed_tokens.weight": (config.decoder_vocab_size, width),
        "lm_head.weight": (config.decoder_vocab_size, width),
        "final_logits_bias": (1, config.decoder_vocab_size),
    }
    for side, attentions in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        heads, hidden = getattr(config, f"{side}_attention_heads"), getattr(config, f"{side}_ffn_dim")
        linear = {"fc1": (hidden, width), "fc2": (width, hidden)}
        linear |= {f"{name}.{part}_proj": (width, width) for name in attentions for part in ("q", "k", "v", "out")}
        vectors = {f"{name}.log_gamma": heads for name in attentions if config.attention_gamma_learnable}
        vectors |= {f"{name}.bias": outputs for name, (outputs, _) in linear.items()}
        for norm in (*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"):
            vectors |= {f"{norm}.weight": width, f"{norm}.bias": width}
        for layer in range(getattr(config, f"{side}_layers")):
            prefix = f"model.{side}.layers.{layer}."
            shapes |= {f"{prefix}{name}.weight": shape for name, shape in linear.items()}
            shapes |= {f"{prefix}{name}": (length,) for name, length in vectors.items()}
    return shapes


def _saved_tokenizer(folder: Path) -> SavedTokenizer | None:
    settings = vars(_Settings.of(folder / "tokenizer_config.json"))
    if settings["tokenizer_class"] not in _TOKENIZER_CLASSES or settings.get("clean_up_tokenization_spaces"):
        return None
    if settings.keys() - {*_DESCRIBING, *_COMPUTED} or (folder / "added_tokens.json").exists():
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    marks = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    return SavedTokenizer(tokenizer, settings) if {settings[name] for name in _MARKS} <= marks else None
