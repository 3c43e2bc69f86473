"""What every configuration of this package says about attention: the fields, their checks, and the implementations they allow."""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, NoReturn

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging

from .attention_activations import NON_NEGATIVE, NORMALIZED, POINTWISE
from .regularization_reluformer import DEFAULT_ENTROPY_MARGIN
from .visibility_reluformer import ATTENTION_SCALINGS, DEFAULT_ALPHA, DEFAULT_GAMMA, LARGEST_ALPHA

logger = logging.get_logger(__name__)

# Each weight depends on its own score alone; the row is then scaled by `attention_scaling`.
POINTWISE_ACTIVATIONS = tuple(POINTWISE)
# Each row of weights sums to one; tokens compete.
NORMALIZED_ACTIVATIONS = tuple(NORMALIZED)
# Point-wise weights that can be read as an unnormalised distribution: S, H and L_reg (Eq. 7) are defined for these alone.
NON_NEGATIVE_ACTIVATIONS = NON_NEGATIVE

ATTENTION_OUTPUT_NORMS = ("none", "layer_norm", "gated_rms")

DEFAULT_REGULARIZATION_WEIGHT = 0.01  # the paper gives no value

# From this likeness on, which goes from 0 to 1, one name is taken for a slip of the other. Below it are names that Transformers
# gives to any configuration, such as `sep_token_id` beside `pad_token_id`.
NEAR_NAMES = 0.85


# What the installed Transformers calls the cache, as an argument and in outputs: `past_key_values` until 5.23, `cache` from 5.24.
CACHE_NAME = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"

# What a pass with labels returns beside loss and logits; predictions of the Trainer leave it out (`keys_to_ignore_at_inference`).
LOSS_FIGURES = (
    "cross_entropy",
    "regularization",
    "attention_sum",
    "attention_entropy",
    "dead_row_fraction",
    "ffn_l1",
)


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


@strict
class AttentionConfig(PreTrainedConfig):
    r"""
    The fields of attention and of its regulariser, which mean the same in every configuration of this package.

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
        attention_alpha (`float`, defaults to 1.0): `alpha` of the length scaling, in [0, 2].
        attention_output_norm (`str`, defaults to `"none"`):
            Norm over the merged heads, before the output projection: `none`, `layer_norm`, or `gated_rms`, ReLA's
            `RMSNorm(z) * g * sigmoid(w * z)` (arXiv 2104.07012).
        attention_qk_norm (`bool`, defaults to `False`): LayerNorm over each head's queries and keys.
        attention_gate (`bool`, defaults to `False`):
            Multiply the merged heads by a projection of the layer's input, before the output projection.
        regularization_weight (`float`, *optional*):
            `lambda`, the weight of `L_reg` (Eq. 7). Default: 0.01 for `relu` with variance scaling, else 0.
        entropy_margin (`float`, defaults to 0.7): `C_i = entropy_margin * log(n_i)` in Eq. 7.
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
    entropy_margin: float | int = DEFAULT_ENTROPY_MARGIN

    @classmethod
    def from_preset(cls, preset: str, **config_fields: Any) -> "AttentionConfig":
        """The configuration of a system of the papers.

        Args:
            preset: the system's name, one of `presets`.
            config_fields: fields that replace the preset's. Unknown names are refused. The constructor keeps those that are not
                near a field's as attributes, as Transformers does.

        Raises:
            ValueError: unknown preset or field, or a bad value.
        """
        if preset not in cls.presets:
            raise ValueError(f"preset={preset!r} is unknown; choose one of {', '.join(cls.presets)}.")
        known = cls._known_names()
        for name in config_fields:
            if name not in known:
                cls._refuse(name, difflib.get_close_matches(name, known, n=3))
        replaced = {cls.attribute_map.get(name, name) for name in config_fields}
        kept = {name: value for name, value in cls.presets[preset].items() if name not in replaced}
        return cls(**kept, **config_fields)

    @classmethod
    def _known_names(cls) -> set[str]:
        return {field.name for field in fields(cls)} | set(cls.attribute_map) | set(cls.more_arguments)

    @classmethod
    def _refuse(cls, name: str, near: list[str]) -> NoReturn:
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        raise ValueError(f"{name!r} is not a field of {cls.__name__}{hint}")

    def take_other_names(self, given: dict[str, Any]) -> None:
        """Moves what is given under another name of a field (see `attribute_map`) to the field, where the checks find it.

        Raises:
            ValueError: the field is given as well, with another value; or a name is nearly a field's. In a saved configuration
                such a name passes: another version may have written it.
        """
        defaults = {field.name: field.default for field in fields(self)}
        for name in self.attribute_map.keys() & given.keys():
            value, field = given.pop(name), self.attribute_map[name]
            if (own := getattr(self, field)) not in (value, defaults[field]):
                raise ValueError(f"{name}={value!r} is another name of {field}, which is {own!r}; give one of the two.")
            setattr(self, field, value)
        if self.transformers_version is not None:  # a saved configuration names the version that wrote it
            return
        known = self._known_names()
        for name in given.keys() - known:
            short = [f"attention_{name}"] if f"attention_{name}" in known else []
            if near := short or difflib.get_close_matches(name, known, n=3, cutoff=NEAR_NAMES):
                self._refuse(name, near)

    def resolve_attention(self) -> None:
        """Puts in the defaults that depend on other fields, and checks all fields of attention.

        Raises:
            ValueError: a bad value, or two that exclude each other; with the valid choices.
        """
        self.require_choice("attention_activation", POINTWISE_ACTIVATIONS + NORMALIZED_ACTIVATIONS)
        if self.attention_scaling is None:
            pointwise = self.attention_activation in POINTWISE_ACTIVATIONS
            self.attention_scaling = self.pointwise_scaling if pointwise else "none"
        if self.regularization_weight is None:
            by_the_paper = self.attention_activation == "relu" and self.attention_scaling == "variance"
            self.regularization_weight = DEFAULT_REGULARIZATION_WEIGHT if by_the_paper else 0.0
        self.require_choice("attention_scaling", ATTENTION_SCALINGS)
        self.require_choice("attention_output_norm", ATTENTION_OUTPUT_NORMS)
        self._check_combinations()
        self.require_range("attention_alpha", 0, LARGEST_ALPHA)
        if self.attention_alpha != DEFAULT_ALPHA and self.attention_scaling != "length":
            logger.warning_once(
                f"attention_alpha={self.attention_alpha} has no effect: it belongs to attention_scaling='length', and "
                f"attention_scaling is {self.attention_scaling!r}."
            )
        self.require_range("entropy_margin", 0, 1)
        if not 0 < self.attention_gamma < float("inf"):
            raise ValueError(f"attention_gamma={self.attention_gamma} must be a finite number above 0.")
        if not 0 <= self.regularization_weight < float("inf"):
            raise ValueError(f"regularization_weight={self.regularization_weight} must be finite and at least 0.")

    def _check_combinations(self) -> None:
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

    def require_choice(self, name: str, choices: tuple[str, ...]) -> None:
        """Raises a `ValueError` unless the field is one of the choices."""
        value = getattr(self, name)
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not supported; choose one of {', '.join(map(str, choices))}.")

    def require_range(self, name: str, least: float, most: float) -> None:
        """Raises a `ValueError` unless the field lies in [least, most]."""
        if not least <= getattr(self, name) <= most:
            raise ValueError(f"{name}={getattr(self, name)} must lie in [{least}, {most}].")

    def require_rates(self, *names: str) -> None:
        """Raises a `ValueError` unless the fields lie in [0, 1), as rates of dropout do."""
        for name in names:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1).")

    def require_at_least_one(self, *names: str) -> None:
        """Raises a `ValueError` unless the fields are at least 1."""
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
