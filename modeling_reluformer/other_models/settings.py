"""`use_relu_attention`, and the settings of ReLU attention in other models: the key `reluformer` of their config."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import is_torchdynamo_compiling, logging

from ..attention_reluformer import DEFAULT_ALPHA, DEFAULT_GAMMA, NON_NEGATIVE, POINTWISE
from ..configuration_reluformer import AttentionConfig
from ..fused.specification import check_scaling
from ..loss_reluformer import DEFAULT_ENTROPY_MARGIN
from .regularization import watch
from .saving import keep_name
from .support import ATTENTION_NAME, CONFIG_KEY, refuse_class, refuse_softmax_layers

logger = logging.get_logger(__name__)

# Tokens of the longest inputs for which gamma was measured; the shortest were sentences of about 15.
LONGEST = 1024


@dataclass(frozen=True)
class ForeignSettings:
    """What `attn_implementation="reluformer"` computes in a model that is not a ReLUFormer.

    activation: a name of `POINTWISE`.
    scaling: row scale over the n_i keys that query i sees: variance, 1 / (gamma sqrt(n_i / 2)) (Eq. 6); length,
        n_i ** -alpha; none, 1.
    gamma: of the variance scaling, default 8. alpha: of the length scaling, in [0, 2], default 1.
    implementation: "auto", fused unless the mask has no compact form or weights are asked for; "eager", always the reference,
        which returns the weights.
    regularization_weight: λ of L_reg (Eq. 7), which is added to the model's own loss in training; 0: it is not computed.
        Only for activations whose weights are never negative.
    entropy_margin: of L_reg, in [0, 1].

    Raises:
        TypeError: an unknown setting. ValueError: a bad value, or one that the scaling does not use.
    """

    activation: str = "relu"
    scaling: str = "variance"
    gamma: float | None = None
    alpha: float | None = None
    implementation: str = "auto"
    regularization_weight: float = 0.0
    entropy_margin: float = DEFAULT_ENTROPY_MARGIN

    def __post_init__(self) -> None:
        if self.activation not in POINTWISE:
            raise ValueError(
                f"{CONFIG_KEY}: activation={self.activation!r} is not point-wise; choose one of "
                f"{', '.join(POINTWISE)}. For softmax, load the model with attn_implementation='sdpa'."
            )
        check_scaling(self.scaling, self.gamma, self.alpha)
        if self.implementation not in ("auto", "eager"):
            raise ValueError(f"{CONFIG_KEY}: implementation={self.implementation!r} must be auto or eager.")
        if not 0 <= self.regularization_weight < math.inf or not 0 <= self.entropy_margin <= 1:
            raise ValueError(
                f"{CONFIG_KEY}: regularization_weight={self.regularization_weight} must be finite and at least 0, and "
                f"entropy_margin={self.entropy_margin} from 0 to 1."
            )
        if self.regularization_weight and self.activation not in NON_NEGATIVE:
            raise ValueError(
                f"{CONFIG_KEY}: regularization_weight={self.regularization_weight} takes the logarithm of the weights, which "
                f"must never be negative ({', '.join(NON_NEGATIVE)}); activation is {self.activation!r}. Use 0."
            )
        if self.scaling == "variance" and self.gamma is None:
            object.__setattr__(self, "gamma", DEFAULT_GAMMA)
        if self.scaling == "length" and self.alpha is None:
            object.__setattr__(self, "alpha", DEFAULT_ALPHA)

    def to_mapping(self) -> dict[str, Any]:
        """The settings as a config holds them: all that is used, defaults included."""
        unused = () if self.regularization_weight else ("regularization_weight", "entropy_margin")
        return {name: value for name, value in asdict(self).items() if value is not None and name not in unused}


def settings_of(module: nn.Module) -> ForeignSettings:
    """The settings in the config of an attention module; without settings the defaults, with one warning for a kind of config."""
    config = getattr(module, "config", None)
    settings = getattr(config, CONFIG_KEY, None)
    if settings is None and not is_torchdynamo_compiling():
        logger.warning_once(
            f"{type(module if config is None else config).__name__} holds no settings under the key {CONFIG_KEY!r}: "
            f"attn_implementation={ATTENTION_NAME!r} computes the defaults, {ForeignSettings().to_mapping()}. "
            "`use_relu_attention` writes them, and saves them with the model."
        )
    return ForeignSettings(**(settings or {}))


def gamma_for_length(length: float) -> float:
    """gamma = max(8, sqrt(2 · length)), to two digits; `length` in tokens of a usual input, special ones included.

    On sentences of about 15 tokens, 8 is the smallest gamma that learns as fast as the best; on documents of about 450, 16, 32
    and 64 are level, and sqrt(2 · 450) is 30 (docs/reproduction.md, "gamma, lambda and the length"). It was measured in
    translation models of one size, with ReLU, up to `LONGEST` tokens.
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
        TypeError: not a Transformers model, or an unknown setting.
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
    found = ForeignSettings(**_with_gamma(settings, length)).to_mapping()
    with_config = [part for part in model.modules() if isinstance(getattr(part, "config", None), PreTrainedConfig)]
    models = [part for part in with_config if isinstance(part, PreTrainedModel)]
    for part in models:
        refuse_class(part)
    refuse_softmax_layers(model, type(model).__name__)
    for part in with_config:
        setattr(part.config, CONFIG_KEY, dict(found))
    model.set_attn_implementation(ATTENTION_NAME)
    for part in with_config:
        keep_name(part.config)
    for part in models:
        watch(part)
    return model


def _with_gamma(settings: dict[str, Any], length: float | None) -> dict[str, Any]:
    """The settings with a number for `gamma="auto"`. What would have no effect is refused."""
    if "entropy_margin" in settings and not settings.get("regularization_weight"):
        raise ValueError(
            "entropy_margin belongs to a regularization_weight above 0: give both, or leave entropy_margin out."
        )
    gamma = settings.get("gamma")
    if (gamma == "auto") == (length is None):
        raise ValueError(
            f"gamma='auto' takes the length of a usual input in tokens, and nothing else does; got gamma={gamma!r} and "
            f"length={length!r}. Give the median of your training inputs or the number of patches of an image."
        )
    return settings if length is None else {**settings, "gamma": gamma_for_length(length)}
