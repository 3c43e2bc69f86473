"""Configuration of ReLUFormer: what is computed. How it is computed (`attn_implementation`) is never saved."""

import difflib
from dataclasses import fields
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from .attention_activations import NON_NEGATIVE, NORMALIZED, POINTWISE

# Each weight depends on its own score alone; the row is then scaled by `attention_scaling`.
POINTWISE_ACTIVATIONS = tuple(POINTWISE)
# Each row of weights sums to one; tokens compete.
NORMALIZED_ACTIVATIONS = tuple(NORMALIZED)
# Point-wise weights that can be read as an unnormalised distribution: S, H and L_reg (Eq. 7) are defined for these alone.
NON_NEGATIVE_ACTIVATIONS = NON_NEGATIVE

ATTENTION_SCALINGS = ("variance", "length", "none")
ATTENTION_OUTPUT_NORMS = ("none", "layer_norm", "gated_rms")
FFN_OUTPUT_NORMS = ("none", "layer_norm")

# The paper gives no value for either. In the study `gamma`, 8 and 16 are the best on sentences of about 15 tokens.
DEFAULT_GAMMA = 8.0
DEFAULT_REGULARIZATION_WEIGHT = 0.01
DEFAULT_ENTROPY_MARGIN = 0.7  # of Eq. 7

PRESETS: dict[str, dict[str, Any]] = {
    "reluformer": {"attention_activation": "relu", "attention_scaling": "variance"},
    "vanilla": {"attention_activation": "softmax", "regularization_weight": 0.0},
    "sparsemax": {"attention_activation": "sparsemax", "regularization_weight": 0.0},
    "entmax15": {"attention_activation": "entmax15", "regularization_weight": 0.0},
    "rela": {
        "attention_activation": "relu",
        "attention_scaling": "none",
        "attention_output_norm": "gated_rms",
        "regularization_weight": 0.0,
    },
    "relu_vit": {
        "attention_activation": "relu",
        "attention_scaling": "length",
        "attention_qk_norm": True,
        "regularization_weight": 0.0,
    },
}


def valid_attention_implementations(attention_activation: str) -> tuple[str, ...]:
    """The values of `attn_implementation` that compute `attention_activation`, the default first."""
    if attention_activation == "softmax":
        return ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flash_attention_4")
    if attention_activation in NORMALIZED_ACTIVATIONS:
        return ("eager",)
    return ("fused", "eager")


def require_attention_implementation(attention_activation: str, attn_implementation: str) -> None:
    """Raises a `ValueError` with the valid choices where the implementation cannot compute the activation."""
    valid = valid_attention_implementations(attention_activation)
    if attn_implementation not in valid:
        raise ValueError(
            f'Specified `attn_implementation="{attn_implementation}"` is not supported by '
            f"attention_activation={attention_activation!r}; choose one of {', '.join(valid)}."
        )


def require_tensor_parallel(config: "ReLUFormerConfig", processes: int) -> None:
    """Raises a `ValueError` where whole heads and FFN columns, dealt out to `processes`, would not compute the same model."""
    whole_only = {
        "attention_output_norm": (config.attention_output_norm != "none", "normalises over the heads of all processes"),
        "attention_gamma_learnable": (
            config.attention_gamma_learnable,
            "holds one gamma for each head of all processes",
        ),
        "activation_function": (
            config.activation_function == "softmax",
            "normalises over the columns of all processes",
        ),
    }
    for name, (is_set, reason) in whole_only.items():
        if is_set:
            raise ValueError(f"{name}={getattr(config, name)!r} {reason}: not with tensor parallelism. Use tp_size=1.")
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        if getattr(config, name) % processes:
            raise ValueError(
                f"{name}={getattr(config, name)} must be a multiple of tp_size={processes}: heads stay whole."
            )


@strict
class ReLUFormerConfig(PreTrainedConfig):
    r"""
    Configuration of a [`ReLUFormerModel`]. The defaults are the architecture of arXiv 2302.06461 in its WMT14 size.

    The field names are Marian's; what follows is ReLUFormer's own. A wrong value raises a `ValueError` that names the
    field, the value and the valid choices.

    Args:
        attention_activation (`str`, defaults to `"relu"`):
            What turns a score `q·k/sqrt(head_dim)` into a weight: a point-wise activation, one of `POINTWISE_ACTIVATIONS`
            of this module, or `softmax`, `sparsemax`, `entmax15`, whose rows sum to one (the last two need the package
            `entmax`).
        attention_scaling (`str`, *optional*):
            Row scale of point-wise weights over the `n_i` keys that query `i` can see: `variance` is
            `1 / (gamma * sqrt(n_i / 2))` (Eq. 6), `length` is `n_i ** -alpha` (arXiv 2309.08586), `none` is 1.
            Default: `variance` for point-wise activations, `none` for the others, which allow nothing else.
        attention_gamma (`float`, defaults to 8.0): `gamma` of the variance scaling.
        attention_gamma_learnable (`bool`, defaults to `False`): one trained `gamma` per head, starting at `attention_gamma`.
        attention_alpha (`float`, defaults to 1.0): `alpha` of the length scaling, in [0, 1].
        attention_output_norm (`str`, defaults to `"none"`):
            Norm over the merged heads, before the output projection: `none`, `layer_norm`, or `gated_rms`, ReLA's
            `RMSNorm(z) * g * sigmoid(w * z)` (arXiv 2104.07012).
        attention_qk_norm (`bool`, defaults to `False`): LayerNorm over each head's queries and keys.
        attention_gate (`bool`, defaults to `False`):
            Multiply the merged heads by a projection of the layer's input, before the output projection.
        ffn_output_norm (`str`, defaults to `"none"`): `none`, or `layer_norm` on the result of the FFN (Table 1).
        ffn_temperature (`float`, defaults to 1.0): divides the scores of a softmax FFN (§3.4).
        activation_function (`str`, defaults to `"relu"`): any name of `ACT2FN`, or `softmax` (FFN as key-value memory, Eq. 2).
        label_smoothing (`float`, defaults to 0.1): of the model's own loss, which holds the regulariser too.
        regularization_weight (`float`, *optional*):
            `lambda`, the weight of `L_reg` (Eq. 7). Default: 0.01 for `relu` with variance scaling, else 0.
        entropy_margin (`float`, defaults to 0.7): `C_i = entropy_margin * log(n_i)` in Eq. 7.
        decoder_vocab_size (`int`, *optional*): defaults to `vocab_size`; may differ only with unshared embeddings.
        share_encoder_decoder_embeddings (`bool`, defaults to `True`): one embedding for source and target.
        init_std (`float`, *optional*):
            Standard deviation of all initial weights. Default: as in Vaswani et al.: Xavier-uniform projections and
            embeddings of standard deviation `d_model ** -0.5`.

    Example:

    ```python
    >>> from reluformer import ReLUFormerConfig

    >>> config = ReLUFormerConfig(d_model=256, encoder_layers=3, decoder_layers=3)
    >>> baseline = ReLUFormerConfig.from_preset("vanilla", d_model=256, encoder_layers=3, decoder_layers=3)
    ```"""

    model_type = "reluformer"
    keys_to_ignore_at_inference = ["past_key_values"]
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

    attention_activation: str = "relu"
    attention_scaling: str | None = None
    attention_gamma: float | int = DEFAULT_GAMMA
    attention_gamma_learnable: bool = False
    attention_alpha: float | int = 1.0
    attention_output_norm: str = "none"
    attention_qk_norm: bool = False
    attention_gate: bool = False
    attention_dropout: float | int = 0.1

    activation_function: str = "relu"
    ffn_output_norm: str = "none"
    ffn_temperature: float | int = 1.0
    activation_dropout: float | int = 0.0
    dropout: float | int = 0.1

    label_smoothing: float | int = 0.1
    regularization_weight: float | int | None = None
    entropy_margin: float | int = DEFAULT_ENTROPY_MARGIN

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

    @classmethod
    def from_preset(cls, preset: str, **config_fields: Any) -> "ReLUFormerConfig":
        """The configuration of a system of the papers: `reluformer`, `vanilla`, `sparsemax`, `entmax15`, `rela` or `relu_vit`.

        Args:
            preset: the system's name.
            config_fields: fields that replace the preset's. Unknown names are refused. The constructor keeps them as
                attributes, because old and new checkpoints need that.

        Raises:
            ValueError: unknown preset or field, or a bad value.
        """
        if preset not in PRESETS:
            raise ValueError(f"preset={preset!r} is unknown; choose one of {', '.join(PRESETS)}.")
        known = {field.name for field in fields(cls)} | set(cls.attribute_map)
        for name in config_fields:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3)
                hint = f"; did you mean {' or '.join(close)}?" if close else "."
                raise ValueError(f"{name!r} is not a field of ReLUFormerConfig{hint}")
        return cls(**{**PRESETS[preset], **config_fields})

    def __post_init__(self, **kwargs: Any) -> None:
        if not self.is_encoder_decoder:
            raise ValueError("is_encoder_decoder=False is not supported: ReLUFormer always has both. Leave it at True.")
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        _require_choice(self, "attention_activation", POINTWISE_ACTIVATIONS + NORMALIZED_ACTIVATIONS)
        pointwise = self.attention_activation in POINTWISE_ACTIVATIONS
        if self.attention_scaling is None:
            self.attention_scaling = "variance" if pointwise else "none"
        if self.regularization_weight is None:
            by_the_paper = self.attention_activation == "relu" and self.attention_scaling == "variance"
            self.regularization_weight = DEFAULT_REGULARIZATION_WEIGHT if by_the_paper else 0.0
        self._check_attention()
        self._check_ffn()
        self._check_numbers()
        super().__post_init__(**kwargs)
        # after the library, whose older versions add the embedding to the plan
        self.base_model_tp_plan = self._tensor_parallel_plan()

    def _tensor_parallel_plan(self) -> dict[str, str]:
        """How tensor parallelism cuts the projections: whole heads of attention, columns of the FFN. All else is whole."""
        attention = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "out_proj": "rowwise"}
        if self.attention_gate:
            attention["gate_proj"] = "colwise"
        if self.attention_qk_norm:
            attention |= dict.fromkeys(("q_norm", "k_norm"), "replicated_with_grad_allreduce")
        attentions = ("encoder.layers.*.self_attn", "decoder.layers.*.self_attn", "decoder.layers.*.encoder_attn")
        plan = {f"{module}.{name}": style for module in attentions for name, style in attention.items()}
        for stack in ("encoder", "decoder"):
            plan |= {f"{stack}.layers.*.fc1": "colwise", f"{stack}.layers.*.fc2": "rowwise"}
        return plan

    def _check_attention(self) -> None:
        _require_choice(self, "attention_scaling", ATTENTION_SCALINGS)
        _require_choice(self, "attention_output_norm", ATTENTION_OUTPUT_NORMS)
        activation = self.attention_activation
        if activation in NORMALIZED_ACTIVATIONS and self.attention_scaling != "none":
            raise ValueError(
                f"attention_scaling={self.attention_scaling!r} is for point-wise activations; rows of {activation!r} sum to "
                f"one already. Use 'none', or one of the activations {', '.join(POINTWISE_ACTIVATIONS)}."
            )
        if self.attention_gamma_learnable and self.attention_scaling != "variance":
            raise ValueError(
                "attention_gamma_learnable=True needs attention_scaling='variance', where gamma is; "
                f"it is {self.attention_scaling!r}."
            )
        if self.regularization_weight != 0 and activation not in NON_NEGATIVE_ACTIVATIONS:
            raise ValueError(
                f"regularization_weight={self.regularization_weight} needs point-wise weights that are never negative "
                f"({', '.join(NON_NEGATIVE_ACTIVATIONS)}), since it takes their logarithm; "
                f"attention_activation is {activation!r}. Use 0."
            )
        for part in ("encoder", "decoder"):
            heads = getattr(self, f"{part}_attention_heads")
            if heads < 1 or self.d_model % heads != 0:
                raise ValueError(f"d_model={self.d_model} must be a multiple of {part}_attention_heads={heads}.")

    def _check_ffn(self) -> None:
        _require_choice(self, "ffn_output_norm", FFN_OUTPUT_NORMS)
        _require_choice(self, "activation_function", (*ACT2FN.keys(), "softmax"))
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

    def _check_numbers(self) -> None:
        for name in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1).")
        for name in ("attention_alpha", "entropy_margin"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1].")
        for name in ("attention_gamma", "ffn_temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)} must be a finite number above 0.")
        if not 0 <= self.regularization_weight < float("inf"):
            raise ValueError(f"regularization_weight={self.regularization_weight} must be finite and at least 0.")
        sizes = ("vocab_size", "decoder_vocab_size", "d_model", "max_position_embeddings", "encoder_layers")
        for name in (*sizes, "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")


def _require_choice(config: ReLUFormerConfig, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not supported; choose one of {', '.join(choices)}.")


__all__ = ["ReLUFormerConfig"]
