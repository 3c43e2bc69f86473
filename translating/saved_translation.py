"""A translator from a folder without Transformers, of which the import takes longer than a short translation.

It takes what `save_pretrained` writes of a model that `FastTranslationModel` computes, and of a tokenizer that is
nothing but its tokenizer.json. For anything else `quick_translator` is None, and Transformers loads the folder, with
its own messages. That is so for a folder with another file, an unknown field, or a value that `ReLUFormerConfig` would
refuse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from reluformer.modeling_reluformer.attention_reluformer import (
    check_attention_fields,
    check_regularization_share,
    require,
)
from reluformer.modeling_reluformer.compiled.library import library
from reluformer.translating.fast_translation import SavedModel, reason_against
from reluformer.translating.shipped import located
from reluformer.translating.translation import Translator

# Settings of a tokenizer that change no ids and no text here, and those that are computed.
_TOKENIZER_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_DESCRIBING = ("backend", "model_input_names", "model_max_length", "source_language", "target_language", "text_unit")
_DESCRIBING += ("is_local", "local_files_only")  # of a tokenizer that was loaded and saved again
# Of other ways to keep weights and tokens, which Transformers would read.
_OTHER_FILES = ("*.index.json", "adapter_config.json", "added_tokens.json", "special_tokens_map.json")
_MOST_POSITIONS = 2**20  # a table of more may not fit into memory
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
    if any(next(folder.glob(pattern), None) for pattern in _OTHER_FILES):
        return None
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
    if not (_has_known_fields(config) and _is_sound(config) and _is_sound_generation(generation)):
        return None
    # before the weights, which Transformers would read again
    if reason_against(SavedModel(config, generation, {}), generation.to_diff_dict()) is not None:
        return None
    weights = _with_tied_weights(load_file(folder / "model.safetensors"), config)
    is_whole = weights is not None and _are_whole(weights, config)
    return SavedModel(config, generation, weights) if is_whole else None


def _with_tied_weights(weights: dict[str, Tensor], config: _Settings) -> dict[str, Tensor] | None:
    """The weights of a file, which holds a tied one once, by all their names; None where it holds a copy, too.

    Transformers takes the copy where it differs, and unties the two.
    """
    is_shared = config.share_encoder_decoder_embeddings
    source = "model.shared.weight" if is_shared else "model.decoder.embed_tokens.weight"
    tied = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder") if is_shared]
    tied += ["lm_head.weight"] if config.tie_word_embeddings else []
    if not weights.keys().isdisjoint(tied):
        return None
    weights |= dict.fromkeys(tied, weights[source])
    if is_shared:
        del weights[source]
    return weights


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)  # True is none


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_token(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_any(value: Any) -> bool:
    return True


# Every field that `ReLUFormerConfig` writes into config.json, and the types of values that are read here; `_is_sound`
# asks for their ranges, and `reason_against` limits some more.
_FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "d_model", "max_position_embeddings"), _is_size),
    **dict.fromkeys(("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"), _is_size),
    **dict.fromkeys(("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"), _is_size),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "decoder_start_token_id"), _is_token),
    "eos_token_id": lambda value: all(map(_is_token, value)) if isinstance(value, list) else _is_token(value),
    **dict.fromkeys(("attention_gamma_learnable", "attention_qk_norm", "attention_gate"), _is_flag),
    **dict.fromkeys(("scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings"), _is_flag),
    **dict.fromkeys(("skip_logits", "use_cache"), _is_flag),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "label_smoothing"), _is_number),
    **dict.fromkeys(("regularization_weight", "entropy_margin", "attention_gamma", "attention_alpha"), _is_number),
    **dict.fromkeys(("ffn_l1_weight", "ffn_threshold"), _is_number),
    "ffn_temperature": lambda value: _is_number(value) and value == 1,
    **dict.fromkeys(("init_std", "activation_sparsity_pattern"), lambda value: value is None or _is_number(value)),
    **dict.fromkeys(("attention_scaling", "attention_activation", "attention_output_norm"), _is_any),
    **dict.fromkeys(("activation_function", "ffn_output_norm", "ffn_top_k"), _is_any),
    "is_encoder_decoder": lambda value: value is True,
    "model_type": lambda value: value == "reluformer",
    "dtype": lambda value: value in ("float32", "bfloat16", "float16"),
    **dict.fromkeys(("architectures", "transformers_version"), _is_any),
}
# `regularization_share` is younger than the models that ship.
_OPTIONAL_FIELDS: dict[str, Callable[[Any], bool]] = {
    "auto_map": lambda value: isinstance(value, dict),
    "regularization_share": _is_number,
}


def _has_known_fields(config: _Settings) -> bool:
    values = vars(config)
    rules = _FIELDS | _OPTIONAL_FIELDS
    return _FIELDS.keys() <= values.keys() <= rules.keys() and all(rules[name](values[name]) for name in values)


def _is_sound(config: _Settings) -> bool:
    """Whether the fields go together; a `ValueError`, as of `ReLUFormerConfig`, for one of attention or a number out of
    its range."""
    vars(config).setdefault("regularization_share", 1.0)
    check_attention_fields(config)
    check_regularization_share(config, config.encoder_layers + 2 * config.decoder_layers)
    require(config, "lie in [0, 1)", "dropout", "attention_dropout", "activation_dropout", "label_smoothing")
    require(config, "be a finite number of at least 0", "ffn_threshold", "ffn_l1_weight")
    if config.init_std is not None:
        require(config, "be a finite number above 0", "init_std")
    tokens = config.pad_token_id, config.bos_token_id, config.decoder_start_token_id
    return (
        all(config.d_model % heads == 0 for heads in (config.encoder_attention_heads, config.decoder_attention_heads))
        and all(token is None or token < config.vocab_size for token in tokens)
        and config.max_position_embeddings <= _MOST_POSITIONS
    )


def _is_sound_generation(generation: _Settings) -> bool:
    """Whether generation_config.json holds no value that `GenerationConfig` refuses; what is served says
    `reason_against`."""
    values = vars(generation)
    are_tokens = all(_is_token(values.get(name)) for name in ("pad_token_id", "bos_token_id"))
    limits = (values.get(name) for name in ("max_new_tokens", "max_length", "num_beams"))
    are_sizes = all(limit is None or _is_size(limit) for limit in limits)
    return are_tokens and are_sizes and not any(isinstance(value, dict) for value in values.values())


def _are_whole(weights: dict[str, Tensor], config: _Settings) -> bool:
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    are_numbers = (weight.dtype in _DTYPES and torch.isfinite(weight).all() for weight in weights.values())
    return shapes == expected_shapes(config) and all(are_numbers)


def expected_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights of a model that `reason_against` has nothing against, by their names."""
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
    if settings.keys() - {*_DESCRIBING, *_COMPUTED} or not _is_number(settings.get("model_max_length", 0)):
        return None
    if not isinstance(settings.get("model_input_names", []), list):
        return None
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # the library raises nothing narrower; Transformers says what is wrong with the file
        return None
    marks = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    return SavedTokenizer(tokenizer, settings) if {settings[name] for name in _MARKS} <= marks else None
