"""`use_relu_attention`, and the settings of ReLU attention in other models: the key `reluformer` of their config."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import is_torchdynamo_compiling, logging

from ..attention_reluformer import ATTENTION_SCALINGS, DEFAULT_GAMMA, LARGEST_ALPHA, NON_NEGATIVE, NORMALIZED, POINTWISE
from ..configuration_reluformer import AttentionConfig
from ..loss_reluformer import DEFAULT_ENTROPY_MARGIN
from .regularization import watch
from .saving import keep_name
from .support import ATTENTION_NAME, CONFIG_KEY, refuse_class, refuse_softmax_layers, refuse_without_attention

logger = logging.get_logger(__name__)

# Tokens of an input for which gamma was measured: sentences of about 15, and documents of at most 128, 512 and 1,024.
SHORTEST, LONGEST = 8, 1024


@dataclass(frozen=True)
class ForeignSettings:
    """What `attn_implementation="reluformer"` computes in a model that is not a ReLUFormer.

    activation: one of `POINTWISE` of the configuration.
    scaling: row scale over the n_i keys that query i sees: variance, 1 / (gamma sqrt(n_i / 2)) (Eq. 6); length,
        n_i ** -alpha; none, 1.
    gamma: of the variance scaling. alpha: of the length scaling, in [0, 2].
    implementation: "auto", fused unless the mask has no compact form or weights are asked for; "eager", always the reference,
        which returns the weights.
    regularization_weight: λ of L_reg (Eq. 7), which is added to the model's own loss in training; 0: it is not computed.
        Only for activations whose weights are never negative.
    entropy_margin: of L_reg, in [0, 1].

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

    def __post_init__(self) -> None:
        if self.activation in NORMALIZED:
            raise ValueError(
                f"{CONFIG_KEY}: activation={self.activation!r} is not point-wise; choose one of "
                f"{', '.join(POINTWISE)}. For softmax, load the model with attn_implementation='sdpa'."
            )
        self._require("activation", POINTWISE)
        self._require("scaling", ATTENTION_SCALINGS)
        self._require("implementation", ("auto", "eager"))
        self._require_number("gamma", math.ulp(0.0), math.inf)
        self._require_number("alpha", 0, LARGEST_ALPHA)
        self._require_number("regularization_weight", 0, math.inf)
        self._require_number("entropy_margin", 0, 1)
        if self.regularization_weight and self.activation not in NON_NEGATIVE:
            raise ValueError(
                f"{CONFIG_KEY}: regularization_weight={self.regularization_weight} takes the logarithm of the weights, which "
                f"must never be negative ({', '.join(NON_NEGATIVE)}); activation is {self.activation!r}. Use 0."
            )

    def _require(self, name: str, choices: tuple[str, ...]) -> None:
        if (value := getattr(self, name)) not in choices:
            raise ValueError(f"{CONFIG_KEY}: {name}={value!r} is not supported; choose one of {', '.join(choices)}.")

    def _require_number(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{CONFIG_KEY}: {name}={value!r} must be a number.")
        if not least <= value <= most or math.isinf(value):
            allowed = (
                f"in [{least:g}, {most:g}]"
                if most < math.inf
                else f"finite and {'at least 0' if not least else 'above 0'}"
            )
            raise ValueError(f"{CONFIG_KEY}: {name}={value} must be {allowed}.")

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
        for name, scaling in (("gamma", "variance"), ("alpha", "length")):
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
        return {name: value for name, value in asdict(self).items() if name not in unused}


def settings_of(module: nn.Module) -> ForeignSettings:
    """The settings in the config of an attention module; without settings the defaults, with one warning for a kind of config.

    Raises:
        ValueError: see `ForeignSettings.from_mapping`.
    """
    config = getattr(module, "config", None)
    settings = getattr(config, CONFIG_KEY, None)
    if settings is not None:
        return ForeignSettings.from_mapping(settings)
    defaults = ForeignSettings()
    if not is_torchdynamo_compiling():
        logger.warning_once(
            f"{type(module if config is None else config).__name__} holds no settings under the key {CONFIG_KEY!r}: "
            f"attn_implementation={ATTENTION_NAME!r} computes the defaults, {defaults.to_mapping()}. `use_relu_attention` writes "
            "them, and saves them with the model."
        )
    return defaults


def gamma_for_length(length: float) -> float:
    """gamma = max(8, sqrt(2 · length)), to two digits behind the point.

    On sentences of about 15 tokens, 8 is the smallest gamma that learns as fast as the best; on documents of about 450, 16, 32
    and 64 are level, and sqrt(2 · 450) is 30 (docs/reproduction.md, "gamma, lambda and the length"). It was measured in
    translation models of one size, with ReLU.

    Args:
        length: tokens of a usual input, special ones included; not the longest that a model takes.
    """
    return round(max(DEFAULT_GAMMA, math.sqrt(2 * length)), 2)


def use_relu_attention(model: PreTrainedModel, *, length: float | None = None, **settings: Any) -> PreTrainedModel:
    """Gives a model ReLU attention: checks and writes the settings into its config, and sets `attn_implementation`.

    Other than `config.reluformer = {...}` with `model.set_attn_implementation("reluformer")`, it finds mistakes at once and saves
    the name: after `import reluformer`, `from_pretrained` restores ReLU attention; without it, `from_pretrained` raises an error.

    Args:
        model: any Transformers model except a ReLUFormer. Its weights stay as they are, so it has to be trained further.
        length: tokens of a usual input, for `gamma="auto"` alone, see `gamma_for_length`. The config holds the number.
        settings: `activation`, `scaling`, `gamma`, `alpha`, `implementation`, `regularization_weight`, `entropy_margin`, see
            `ForeignSettings`. Those that are left out have their defaults. All are written to the config of the model and of
            all its parts.

    Returns:
        The model itself.

    Raises:
        TypeError: not a Transformers model.
        ValueError: a bad setting, a ReLUFormer, or a model that cannot compute ReLU attention, see `support`. What shows only in
            a call, such as the position bias of T5, is refused by the first forward pass.
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
    with_config = [part for part in model.modules() if isinstance(getattr(part, "config", None), PreTrainedConfig)]
    models = [part for part in with_config if isinstance(part, PreTrainedModel)]
    for part in models:
        refuse_class(part)
    refuse_without_attention(model)
    refuse_softmax_layers(model, type(model).__name__)
    for part in with_config:
        setattr(part.config, CONFIG_KEY, dict(found))
    model.set_attn_implementation(ATTENTION_NAME)
    for part in with_config:
        keep_name(part.config)
    for part in models:
        watch(part)
    return model


def _completed(settings: dict[str, Any], length: float | None) -> dict[str, Any]:
    """The settings with a number for `gamma="auto"`. What would have no effect is refused."""
    if "entropy_margin" in settings and not settings.get("regularization_weight"):
        raise ValueError(
            f"entropy_margin={settings['entropy_margin']} belongs to a regularization_weight above 0, which is 0. Give both, or "
            "leave entropy_margin out."
        )
    if settings.get("gamma") != "auto":
        if length is not None:
            raise ValueError(
                f"length={length} is read for gamma='auto' alone; gamma is {settings.get('gamma', DEFAULT_GAMMA)}."
            )
        return settings
    if not isinstance(length, Real) or not SHORTEST <= length <= LONGEST:
        raise ValueError(
            f"gamma='auto' needs the length of a usual input, {SHORTEST} to {LONGEST:,} tokens; got length={length!r}. "
            "Give the median of your training inputs or the number of patches of an image, or a number as gamma."
        )
    return {**settings, "gamma": gamma_for_length(length)}
