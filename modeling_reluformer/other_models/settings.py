"""Settings of ReLU attention in other models: the key `reluformer` of their config, checked at every use.

They are `ReLUFormerConfig`'s `attention_*` fields without the prefix. A Hub repository does not carry this file: only
`import reluformer` brings the name `reluformer` to other models.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import is_torchdynamo_compiling, logging

from ..configuration_attention import (
    ATTENTION_SCALINGS,
    DEFAULT_ENTROPY_MARGIN,
    DEFAULT_GAMMA,
    NON_NEGATIVE_ACTIVATIONS,
    NORMALIZED_ACTIVATIONS,
    POINTWISE_ACTIVATIONS,
    AttentionConfig,
)
from ..visibility_reluformer import LARGEST_ALPHA
from .gamma import gamma_for_length, gamma_source
from .regularization import watch
from .saving import remember
from .softmax import refuse_softmax_layers, refuse_without_attention
from .start import warn_of_small_start
from .support import ATTENTION_NAME, CONFIG_KEY, refuse_unsupported

logger = logging.get_logger(__name__)

IMPLEMENTATIONS = ("auto", "fused", "eager")


@dataclass(frozen=True)
class ForeignSettings:
    """What `attn_implementation="reluformer"` computes in a model that is not a ReLUFormer.

    activation: one of `POINTWISE_ACTIVATIONS` of the configuration.
    scaling: row scale over the n_i keys that query i sees: variance, 1 / (gamma sqrt(n_i / 2)) (Eq. 6); length,
        n_i ** -alpha; none, 1.
    gamma: of the variance scaling. alpha: of the length scaling, in [0, 2].
    implementation: "auto", fused where the mask has a compact form and no weights are asked for, else the reference;
        "fused", which refuses what "auto" gives to the reference; "eager", the reference always, which returns the weights.
    regularization_weight: λ of L_reg (Eq. 7), which is added to the model's own loss in training; 0: it is not computed.
        Only for activations whose weights are never negative.
    entropy_margin: of L_reg, in [0, 1].
    gamma_source: where gamma is from, if it was not given as a number. Nothing reads it.

    Raises:
        ValueError: a bad value, with the choices.
    """

    activation: str = "relu"
    scaling: str = "variance"
    gamma: float = DEFAULT_GAMMA
    alpha: float = 1.0
    implementation: str = "auto"
    regularization_weight: float = 0.0
    entropy_margin: float = DEFAULT_ENTROPY_MARGIN
    gamma_source: str | None = None

    def __post_init__(self) -> None:
        if self.activation in NORMALIZED_ACTIVATIONS:
            raise ValueError(
                f"{CONFIG_KEY}: activation={self.activation!r} is not point-wise; choose one of "
                f"{', '.join(POINTWISE_ACTIVATIONS)}. For softmax, load the model with attn_implementation='sdpa'."
            )
        choices = {
            "activation": POINTWISE_ACTIVATIONS,
            "scaling": ATTENTION_SCALINGS,
            "implementation": IMPLEMENTATIONS,
        }
        for name, valid in choices.items():
            if getattr(self, name) not in valid:
                raise ValueError(
                    f"{CONFIG_KEY}: {name}={getattr(self, name)!r} is not supported; choose one of {', '.join(valid)}."
                )
        if self.gamma == "auto":
            raise ValueError(
                f"{CONFIG_KEY}: gamma='auto' stands in the config; it becomes a number by the length of a usual input: "
                "use_relu_attention(model, gamma='auto', length=…)."
            )
        self._check_numbers()
        if self.gamma_source is not None and not isinstance(self.gamma_source, str):
            raise ValueError(f"{CONFIG_KEY}: gamma_source={self.gamma_source!r} must be a text.")
        if self.regularization_weight and self.activation not in NON_NEGATIVE_ACTIVATIONS:
            raise ValueError(
                f"{CONFIG_KEY}: regularization_weight={self.regularization_weight} takes the logarithm of the weights, which "
                f"must never be negative ({', '.join(NON_NEGATIVE_ACTIVATIONS)}); activation is {self.activation!r}. Use 0."
            )

    def _check_numbers(self) -> None:
        for name in ("gamma", "alpha", "regularization_weight", "entropy_margin"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{CONFIG_KEY}: {name}={value!r} must be a number.")
        if not 0 < self.gamma < float("inf"):
            raise ValueError(f"{CONFIG_KEY}: gamma={self.gamma} must be a finite number above 0.")
        if not 0 <= self.regularization_weight < float("inf"):
            raise ValueError(
                f"{CONFIG_KEY}: regularization_weight={self.regularization_weight} must be finite and at least 0."
            )
        for name, largest in (("alpha", LARGEST_ALPHA), ("entropy_margin", 1)):
            if not 0 <= getattr(self, name) <= largest:
                raise ValueError(f"{CONFIG_KEY}: {name}={getattr(self, name)} must lie in [0, {largest:g}].")

    @classmethod
    def from_mapping(cls, settings: Any) -> ForeignSettings:
        """The settings of a config, where some may be missing.

        Raises:
            ValueError: settings that are not a mapping, an unknown key, a bad value, or one that the scaling does not use.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(settings, Mapping):
            raise ValueError(
                f"The config's {CONFIG_KEY!r} must be a dictionary with keys out of {', '.join(known)}; got {settings!r}."
            )
        for name in settings:
            if name not in known:
                close = difflib.get_close_matches(str(name).removeprefix("attention_"), known, n=1)
                hint = f"; did you mean {close[0]}?" if close else f"; choose out of {', '.join(known)}."
                raise ValueError(f"{CONFIG_KEY}: {name!r} is not a setting{hint}")
        found = cls(**settings)
        for name, scaling in (("gamma", "variance"), ("gamma_source", "variance"), ("alpha", "length")):
            if name in settings and found.scaling != scaling:
                raise ValueError(
                    f"{CONFIG_KEY}: {name} belongs to scaling={scaling!r}; scaling is {found.scaling!r}. Leave {name} out."
                )
        return found

    def to_mapping(self) -> dict[str, Any]:
        """The settings as a config holds them: all that is used, defaults included."""
        unused = {"variance": {"alpha"}, "length": {"gamma"}, "none": {"gamma", "alpha"}}[self.scaling]
        if not self.regularization_weight:
            unused |= {"regularization_weight", "entropy_margin"}
        if self.gamma_source is None:
            unused |= {"gamma_source"}
        return {name: value for name, value in asdict(self).items() if name not in unused}


DEFAULT_SETTINGS = ForeignSettings()


def settings_of(module: nn.Module) -> ForeignSettings:
    """The settings in the config of an attention module. Without settings the defaults, with one warning for a kind of config.

    Raises:
        ValueError: see `ForeignSettings.from_mapping`.
    """
    config = getattr(module, "config", None)
    settings = getattr(config, CONFIG_KEY, None)
    if settings is not None:
        return ForeignSettings.from_mapping(settings)
    if not is_torchdynamo_compiling():
        logger.warning_once(
            f"{type(module if config is None else config).__name__} holds no settings under the key {CONFIG_KEY!r}: "
            f"attn_implementation={ATTENTION_NAME!r} computes the defaults, {DEFAULT_SETTINGS.to_mapping()}. "
            "`use_relu_attention` writes them, and saves them with the model."
        )
    return DEFAULT_SETTINGS


def use_relu_attention(model: PreTrainedModel, *, length: float | None = None, **settings: Any) -> PreTrainedModel:
    """Gives a model ReLU attention: checks and writes the settings into its config, and sets `attn_implementation`.

    This does the same as `config.reluformer = {...}` and `model.set_attn_implementation("reluformer")`, but finds mistakes now
    (wrong settings, a model that cannot compute ReLU attention), and saves the name: after `import reluformer`,
    `from_pretrained` restores ReLU attention; without it, `from_pretrained` raises an error.

    Args:
        model: any Transformers model except a ReLUFormer. Its weights stay as they are, so it has to be trained further.
        length: tokens of a usual input, for `gamma="auto"` alone, see `gamma_for_length`. The config holds the number that gamma
            became, and what it is from.
        settings: `activation`, `scaling`, `gamma`, `alpha`, `implementation`, `regularization_weight`, `entropy_margin`, see
            `ForeignSettings`. Those that are left out have their defaults. All are written to the config of the model and of
            all its parts.

    Returns:
        The model itself.

    Raises:
        TypeError: not a Transformers model.
        ValueError: a bad setting, a ReLUFormer, or a model that cannot compute ReLU attention, see `refuse_unsupported`,
            `refuse_without_attention` and `refuse_softmax_layers`; a length that `gamma_for_length` refuses.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"use_relu_attention takes a Transformers model (a PreTrainedModel); got {type(model).__module__}."
            f"{type(model).__qualname__}. A model of torch's own can hold reluformer.ReLUAttention instead."
        )
    if isinstance(model.config, AttentionConfig):
        raise ValueError(
            "A ReLUFormer has ReLU attention already: set attention_activation, attention_scaling, … in its config."
        )
    found = ForeignSettings.from_mapping(_completed(settings, length)).to_mapping()
    with_config = [
        module for module in model.modules() if isinstance(getattr(module, "config", None), PreTrainedConfig)
    ]
    for module in with_config:
        refuse_unsupported(module)
    refuse_without_attention(model)
    refuse_softmax_layers(model, type(model).__name__)
    for module in with_config:
        setattr(module.config, CONFIG_KEY, dict(found))
    model.set_attn_implementation(ATTENTION_NAME)
    warn_of_small_start(model, found)
    for module in with_config:
        remember(module.config)
        if isinstance(module, PreTrainedModel):
            watch(module)
    return model


def _completed(settings: dict[str, Any], length: float | None) -> dict[str, Any]:
    """The settings with a number for `gamma="auto"`. What would be left unread is refused."""
    if "entropy_margin" in settings and not settings.get("regularization_weight"):
        raise ValueError(
            f"entropy_margin={settings['entropy_margin']} belongs to a regularization_weight above 0, which is 0. Give both, or "
            "leave entropy_margin out."
        )
    if settings.get("gamma") == "auto":
        if settings.get("activation", "relu") != "relu":
            raise ValueError(
                f"gamma='auto' was measured for activation='relu' alone; it is {settings['activation']!r}. Give a number."
            )
        gamma = gamma_for_length(length)
        return {**settings, "gamma": gamma, "gamma_source": gamma_source(length)}
    if length is not None:
        raise ValueError(
            f"length={length} is read for gamma='auto' alone; gamma is {settings.get('gamma', DEFAULT_GAMMA)}."
        )
    return settings
