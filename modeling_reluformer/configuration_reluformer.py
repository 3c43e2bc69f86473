"""What every model computes (`AttentionConfig`), and the translation model; how it is computed is never saved."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging

from .attention_reluformer import (
    DEFAULT_ALPHA,
    DEFAULT_GAMMA,
    NORMALIZED,
    POINTWISE,
    check_attention_fields,
    check_regularization_share,
    require,
)
from .loss_reluformer import DEFAULT_ENTROPY_MARGIN, LossParts

logger = logging.get_logger(__name__)

DEFAULT_REGULARIZATION_WEIGHT = 0.01  # the paper gives no value

# What the installed Transformers calls the cache, as an argument and in outputs: `past_key_values` until 5.23, `cache`
# from 5.24.
CACHE_NAME = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"

# What a pass with labels returns beside loss and logits; predictions of the Trainer leave it out
# (`keys_to_ignore_at_inference`).
LOSS_PARTS = tuple(field.name for field in fields(LossParts))


def valid_attention_implementations(attention_activation: str) -> tuple[str, ...]:
    """The values of `attn_implementation` that compute `attention_activation`, the default first."""
    if attention_activation == "softmax":
        return ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flash_attention_4")
    return ("eager",) if attention_activation in NORMALIZED else ("fused", "eager")


def require_attention_implementation(attention_activation: str, attn_implementation: str) -> None:
    """Raises a `ValueError` with the valid choices where the implementation cannot compute the activation."""
    valid = valid_attention_implementations(attention_activation)
    if attn_implementation not in valid:
        raise ValueError(
            f'Specified `attn_implementation="{attn_implementation}"` is not supported by '
            f"attention_activation={attention_activation!r}; choose one of {', '.join(valid)}."
        )


# Arguments of every configuration of Transformers that are not among its fields.
_OF_ANY_CONFIGURATION = {
    "_attn_implementation",
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "name_or_path",
    "output_attentions",
    "per_layer_config",
    "quantization_config",
    "sep_token_id",
    "torch_dtype",
}


@strict
class AttentionConfig(PreTrainedConfig):
    r"""
    The fields of attention, of its regulariser and of zeros in feed-forward networks (FFN), which mean the same in
    every configuration of this package. An FFN's activations are what its last projection multiplies; with a gate, the
    fields `ffn_*` are about the activation of the gate, and `ffn_l1_weight` about the product.

    Args:
        attention_activation (`str`, defaults to `"relu"`):
            What turns a score `q·k/sqrt(head_dim)` into a weight: a point-wise activation, one of `POINTWISE`, or
            `softmax`, `sparsemax`, `entmax15`, whose rows sum to one (the last two need the package `entmax`).
        attention_scaling (`str`, *optional*):
            Row scale of point-wise weights over the `n_i` keys that query `i` can see: `variance` is
            `1 / (gamma * sqrt(n_i / 2))` (Eq. 6), `length` is `n_i ** -alpha` (arXiv 2309.08586), `none` is 1.
            Default: `variance` for point-wise activations, `none` for the others, which allow nothing else.
        attention_gamma (`float`, defaults to 16.0): `gamma` of the variance scaling.
        attention_gamma_learnable (`bool`, defaults to `False`): one trained `gamma` per head, starting at
            `attention_gamma`.
        attention_alpha (`float`, defaults to 1.0): `alpha` of the length scaling, in [0, 2].
        attention_output_norm (`str`, defaults to `"none"`):
            Norm over the merged heads, before the output projection: `none`, `layer_norm`, or `gated_rms`, ReLA's
            `RMSNorm(z) * g * sigmoid(w * z)` (arXiv 2104.07012).
        attention_qk_norm (`bool`, defaults to `False`): LayerNorm over each head's queries and keys.
        attention_gate (`bool`, defaults to `False`):
            Multiply the merged heads by a projection of the layer's input, before the output projection.
        regularization_weight (`float`, *optional*):
            `lambda`, the weight of `L_reg` (Eq. 7). Default: 0.01 for `relu` with variance scaling, else 0.
        regularization_share (`float`, defaults to 1.0):
            The probability, from one in as many as there are attention modules to 1, with which a pass in training
            takes each module into `L_reg`. The sum over them is divided by it, so the loss is unbiased, and the other
            modules are spared the statistics of their rows. Evaluation always takes all.
        entropy_margin (`float`, defaults to 0.7): `C_i = entropy_margin * log(n_i)` in Eq. 7.
        ffn_top_k (`int`, *optional*):
            Keep the `k` activations of each token that are largest in magnitude, and set the others to 0.
        activation_sparsity_pattern (`float` or list of `float`, *optional*):
            Statistical top-k, by the field's name in Gemma 3n: before the activation, each score becomes
            `relu(score - (mean + std * q))` over the scores of the token, where `q` is the normal quantile of this
            share, about which becomes 0. One number for all layers, or one for each (of encoder, then decoder); 0
            leaves a layer as it is.
        ffn_threshold (`float`, defaults to 0.0):
            Set activations to 0 whose magnitude is below it; with a ReLU that is FATReLU.
        ffn_l1_weight (`float`, defaults to 0.0):
            Weight, in the model's own loss, of the mean over FFNs and tokens of `‖a‖₁`, the sum of the activations'
            magnitudes.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # What `attention_scaling=None` stands for with a point-wise activation.
    pointwise_scaling: ClassVar[str] = "variance"
    # What the constructor takes beside its fields.
    more_arguments: ClassVar[tuple[str, ...]] = ()

    attention_activation: str = "relu"
    attention_scaling: str | None = None
    attention_gamma: float | int = DEFAULT_GAMMA
    attention_gamma_learnable: bool = False
    attention_alpha: float | int = DEFAULT_ALPHA
    attention_output_norm: str = "none"
    attention_qk_norm: bool = False
    attention_gate: bool = False
    regularization_weight: float | int | None = None
    regularization_share: float | int = 1.0
    entropy_margin: float | int = DEFAULT_ENTROPY_MARGIN
    ffn_top_k: int | None = None
    activation_sparsity_pattern: float | int | list[float | int] | None = None
    ffn_threshold: float | int = 0.0
    ffn_l1_weight: float | int = 0.0

    @classmethod
    def from_preset(cls, preset: str, **config_fields: Any) -> "AttentionConfig":
        """The configuration of a system of the papers, one of `presets`, with `config_fields` in place of the preset's.

        Raises:
            ValueError: unknown preset or field, or a bad value.
        """
        if preset not in cls.presets:
            raise ValueError(f"preset={preset!r} is unknown; choose one of {', '.join(cls.presets)}.")
        for name in config_fields.keys() - cls._known_names() - _OF_ANY_CONFIGURATION:
            cls._refuse_if_near(name, likeness=0.0)  # all that is unknown, with the nearest names
        replaced = {cls.attribute_map.get(name, name) for name in config_fields}
        kept = {name: value for name, value in cls.presets[preset].items() if name not in replaced}
        return cls(**kept, **config_fields)

    @classmethod
    def _known_names(cls) -> set[str]:
        return {field.name for field in fields(cls)} | set(cls.attribute_map) | set(cls.more_arguments)

    @classmethod
    def _refuse_if_near(cls, name: str, likeness: float) -> None:
        known = cls._known_names()
        short = [f"attention_{name}"] if f"attention_{name}" in known else []
        if near := short or difflib.get_close_matches(name, known, cutoff=likeness):
            raise ValueError(f"{name!r} is not a field of {cls.__name__}; did you mean {' or '.join(near)}?")

    def take_other_names(self, fields: dict[str, Any]) -> None:
        """Moves what stands under another name of a field (see `attribute_map`) to the field, where the checks find
        it.

        Raises:
            ValueError: a preset, or a name that is nearly a field's. In a saved configuration it passes: another
                version may have written it.
        """
        for name in self.attribute_map.keys() & fields.keys():
            setattr(self, self.attribute_map[name], fields.pop(name))
        if self.transformers_version is None:  # a saved configuration names the version that wrote it
            self._refuse_unknown(fields)

    def _refuse_unknown(self, fields: dict[str, Any]) -> None:
        """Raises a `ValueError` for a preset or a name that is nearly a field's, and warns of other unknown names."""
        own = type(self).__name__
        if "preset" in fields:
            raise ValueError(
                f"preset={fields['preset']!r} is not a field of {own}; use {own}.from_preset({fields['preset']!r}, …)."
            )
        known = self._known_names()
        for name in sorted(fields.keys() - known - _OF_ANY_CONFIGURATION):
            # less alike may be what somebody else keeps in a configuration
            self._refuse_if_near(name, likeness=0.85)
            alike = sorted(field for field in known if name in field) or difflib.get_close_matches(name, known, n=1)
            guess = f" Did you mean {' or '.join(alike)}?" if alike else ""
            logger.warning(
                f"{name}={fields[name]!r} is not a field of {own}: nothing in the model depends on it.{guess}"
            )

    def resolve_attention(self) -> None:
        """Puts in the defaults that depend on other fields, and checks all: bad values, and pairs that exclude each
        other."""
        self.require_choice("attention_activation", (*POINTWISE, *NORMALIZED))
        if self.attention_scaling is None:
            self.attention_scaling = self.pointwise_scaling if self.attention_activation in POINTWISE else "none"
        if self.regularization_weight is None:
            by_the_paper = self.attention_activation == "relu" and self.attention_scaling == "variance"
            self.regularization_weight = DEFAULT_REGULARIZATION_WEIGHT if by_the_paper else 0.0
        self.require_choice("attention_output_norm", ("none", "layer_norm", "gated_rms"))
        check_attention_fields(self)
        if self.attention_alpha != DEFAULT_ALPHA and self.attention_scaling != "length":
            logger.warning_once(
                f"attention_alpha={self.attention_alpha} has no effect: it belongs to attention_scaling='length', and "
                f"attention_scaling is {self.attention_scaling!r}."
            )
        if self.regularization_share != 1 and self.regularization_weight == 0:
            logger.warning_once(
                f"regularization_share={self.regularization_share} has no effect: it is a share of the regulariser, "
                "and regularization_weight is 0."
            )

    @property
    def attention_modules(self) -> int:
        """How many attention modules a model of this configuration has."""
        return self.num_hidden_layers

    def require_choice(self, name: str, choices: Iterable[str | None]) -> None:
        """Raises a `ValueError` that names the field, its value and what is allowed."""
        if (value := getattr(self, name)) not in choices:
            raise ValueError(f"{name}={value!r} is not supported; choose one of {', '.join(map(str, choices))}.")

    def check_feed_forward(self, activation: str, layers: int, *widths: int) -> None:
        """Checks these fields for FFNs of an `activation`, as many as `layers`, of these `widths`; softmax has no
        zeros."""
        pattern = self.activation_sparsity_pattern
        if self.ffn_top_k is not None and not 1 <= self.ffn_top_k <= min(widths):
            raise ValueError(f"ffn_top_k={self.ffn_top_k} must be from 1 to {min(widths)}, the width of the FFN.")
        require(self, "be a finite number of at least 0", "ffn_threshold", "ffn_l1_weight")
        if isinstance(pattern, list) and len(pattern) != layers:
            raise ValueError(
                f"activation_sparsity_pattern has {len(pattern)} numbers; give one number, or {layers}, one for each "
                "layer."
            )
        if not all(0 <= share < 1 for share in (pattern if isinstance(pattern, list) else [pattern or 0])):
            raise ValueError(f"activation_sparsity_pattern={pattern} must hold shares of at least 0 and below 1.")
        for name in ("ffn_top_k", "activation_sparsity_pattern", "ffn_threshold", "ffn_l1_weight"):
            if activation == "softmax" and getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)} is for point-wise activations of the FFN; it is 'softmax', whose "
                    "weights are never 0 and sum to 1."
                )


_RELU = {"attention_activation": "relu"}
_NO_REGULARIZER = {"regularization_weight": 0.0}
PRESETS: dict[str, dict[str, Any]] = {
    "reluformer": {**_RELU, "attention_scaling": "variance"},
    "vanilla": {"attention_activation": "softmax", **_NO_REGULARIZER},
    "sparsemax": {"attention_activation": "sparsemax", **_NO_REGULARIZER},
    "entmax15": {"attention_activation": "entmax15", **_NO_REGULARIZER},
    "rela": {**_RELU, "attention_scaling": "none", "attention_output_norm": "gated_rms", **_NO_REGULARIZER},
    "relu_vit": {**_RELU, "attention_scaling": "length", "attention_qk_norm": True, **_NO_REGULARIZER},
}


def require_tensor_parallel(config: "ReLUFormerConfig", processes: int) -> None:
    """Raises a `ValueError` where `processes` with some heads and FFN columns each would not compute the same model."""
    needs_all = {
        "attention_output_norm": config.attention_output_norm != "none",
        "attention_gamma_learnable": config.attention_gamma_learnable,
        "activation_function": config.activation_function == "softmax",
        "ffn_top_k": config.ffn_top_k is not None,
        "activation_sparsity_pattern": bool(config.activation_sparsity_pattern),
        "encoder_attention_heads": config.encoder_attention_heads % processes,
        "decoder_attention_heads": config.decoder_attention_heads % processes,
    }
    for name, is_set in needs_all.items():
        if is_set:
            raise ValueError(
                f"{name}={getattr(config, name)!r} does not go with tp_size={processes}: each process holds an equal "
                "share of the heads, whole ones, and of the FFN's columns, and sees no others. Use tp_size=1."
            )


@strict
class ReLUFormerConfig(AttentionConfig):
    r"""
    Configuration of a [`ReLUFormerModel`]. The defaults are the architecture of arXiv 2302.06461 in its WMT14 size.

    The field names are Marian's, and those of [`AttentionConfig`]; what follows is ReLUFormer's own. A wrong value
    raises a `ValueError` that names the field, the value and the valid choices.

    Args:
        ffn_output_norm (`str`, defaults to `"none"`): `none`, or `layer_norm` on the result of the FFN (Table 1).
        ffn_temperature (`float`, defaults to 1.0): divides the scores of a softmax FFN (§3.4).
        activation_function (`str`, defaults to `"relu"`): any name of `ACT2FN`, or `softmax` (FFN as key-value memory,
            Eq. 2).
        label_smoothing (`float`, defaults to 0.1): of the model's own loss, which holds the regulariser too.
        skip_logits (`bool`, defaults to `False`):
            In training with labels, compute the loss without logits, which are then None in the output. `forward` takes
            the same argument.
        decoder_vocab_size (`int`, *optional*): defaults to `vocab_size`; may differ only with unshared embeddings.
        share_encoder_decoder_embeddings (`bool`, defaults to `True`): one embedding for source and target.
        init_std (`float`, *optional*):
            Standard deviation of all initial weights. Default: as in Vaswani et al.: Xavier-uniform projections and
            embeddings of standard deviation `d_model ** -0.5`.
    """

    model_type = "reluformer"
    presets = PRESETS
    keys_to_ignore_at_inference = [CACHE_NAME, *LOSS_PARTS]
    attribute_map = {
        "num_attention_heads": "encoder_attention_heads",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 32000
    decoder_vocab_size: int | None = None
    max_position_embeddings: int = 1024
    d_model: int = 512
    encoder_layers: int = 6
    encoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_ffn_dim: int = 2048

    attention_dropout: float | int = 0.1

    activation_function: str = "relu"
    ffn_output_norm: str = "none"
    ffn_temperature: float | int = 1.0
    activation_dropout: float | int = 0.0
    dropout: float | int = 0.1

    label_smoothing: float | int = 0.1
    skip_logits: bool = False

    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    init_std: float | int | None = None
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: Any) -> None:
        self.take_other_names(kwargs)
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        self.resolve_attention()
        self.require_choice("ffn_output_norm", ("none", "layer_norm"))
        self.require_choice("activation_function", (*ACT2FN.keys(), "softmax"))
        require(self, "lie in [0, 1)", "dropout", "attention_dropout", "activation_dropout", "label_smoothing")
        require(self, "be a finite number above 0", "ffn_temperature")
        if self.init_std is not None:
            require(self, "be a finite number above 0", "init_std")
        require(self, "be at least 1", "vocab_size", "decoder_vocab_size", "d_model", "max_position_embeddings")
        require(self, "be at least 1", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim")
        self._check_sizes()
        widths = (self.encoder_ffn_dim, self.decoder_ffn_dim)
        self.check_feed_forward(self.activation_function, self.encoder_layers + self.decoder_layers, *widths)
        check_regularization_share(self, self.attention_modules)
        super().__post_init__(**kwargs)
        self.base_model_tp_plan = self._tensor_parallel_plan()

    def _tensor_parallel_plan(self) -> dict[str, str]:
        """How tensor parallelism cuts the model: whole heads of attention, columns of the FFN, rows of the
        embeddings."""
        attention = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "out_proj": "rowwise"}
        if self.attention_gate:
            attention["gate_proj"] = "colwise"
        if self.attention_qk_norm:
            attention |= dict.fromkeys(("q_norm", "k_norm"), "replicated_with_grad_allreduce")
        plan = {"shared": "embedding_rowwise"} if self.share_encoder_decoder_embeddings else {}
        for stack, modules in {"encoder": ("self_attn",), "decoder": ("self_attn", "encoder_attn")}.items():
            layer = f"{stack}.layers.*"
            plan |= {f"{layer}.{module}.{name}": how for module in modules for name, how in attention.items()}
            plan |= {f"{layer}.fc1": "colwise", f"{layer}.fc2": "rowwise", f"{stack}.embed_tokens": "embedding_rowwise"}
        return plan

    @property
    def attention_modules(self) -> int:
        return self.encoder_layers + 2 * self.decoder_layers

    def _check_sizes(self) -> None:
        for part in ("encoder", "decoder"):
            heads = getattr(self, f"{part}_attention_heads")
            if heads < 1 or self.d_model % heads != 0:
                raise ValueError(f"d_model={self.d_model} must be a multiple of {part}_attention_heads={heads}.")
        if self.ffn_temperature != 1 and self.activation_function != "softmax":
            raise ValueError(
                f"ffn_temperature={self.ffn_temperature} is for activation_function='softmax'; "
                f"it is {self.activation_function!r}."
            )
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: "
                "set share_encoder_decoder_embeddings=False for two vocabularies."
            )


ReLUFormerConfig.register_for_auto_class()  # `save_pretrained` writes the code beside the configuration
