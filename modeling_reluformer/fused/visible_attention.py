"""Attention by the keys that each query can see: shared by `ReLUAttention` and other models of Transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..attention_reluformer import (
    DEFAULT_ALPHA,
    DEFAULT_GAMMA,
    NON_NEGATIVE,
    POINTWISE,
    AttentionResult,
    Visibility,
    reference_attention,
    scale_of_rows,
    wide,
)
from ..loss_reluformer import DEFAULT_ENTROPY_MARGIN
from .attention import relu_attention
from .specification import check_scaling


@dataclass(frozen=True)
class AttentionSettings:
    """What an attention computes.

    activation: a name of `attention_reluformer.POINTWISE`.
    scaling, gamma, alpha: of the row scale, as in `relu_attention`. Defaults: gamma 8, alpha 1.
    regularization_weight: λ of L_reg (Eq. 7), for activations whose weights are never negative; 0: it is not computed.
    entropy_margin: of L_reg, in [0, 1].

    Raises:
        TypeError: an unknown setting. ValueError: a bad value, or one that the scaling does not use.
    """

    activation: str = "relu"
    scaling: str = "variance"
    gamma: float | None = None
    alpha: float | None = None
    regularization_weight: float = 0.0
    entropy_margin: float = DEFAULT_ENTROPY_MARGIN

    def __post_init__(self) -> None:
        if self.activation not in POINTWISE:
            raise ValueError(
                f"activation={self.activation!r} is not point-wise; choose one of {', '.join(POINTWISE)}. For softmax, use "
                "nn.MultiheadAttention, or load the model with attn_implementation='sdpa'."
            )
        check_scaling(self.scaling, self.gamma, self.alpha)
        if not 0 <= self.regularization_weight < math.inf or not 0 <= self.entropy_margin <= 1:
            raise ValueError(
                f"regularization_weight={self.regularization_weight} must be finite and at least 0, and "
                f"entropy_margin={self.entropy_margin} from 0 to 1."
            )
        if self.regularization_weight:
            self.check_regularization()
        if self.scaling == "variance" and self.gamma is None:
            object.__setattr__(self, "gamma", DEFAULT_GAMMA)
        if self.scaling == "length" and self.alpha is None:
            object.__setattr__(self, "alpha", DEFAULT_ALPHA)

    def check_regularization(self) -> None:
        """Refuses L_reg of an activation that may be negative.

        Raises:
            ValueError: there are no logarithms of its weights.
        """
        if self.activation not in NON_NEGATIVE:
            raise ValueError(
                f"L_reg needs weights that are never negative ({', '.join(NON_NEGATIVE)}); those of {self.activation!r} can be. "
                "Leave L_reg out, or choose another activation."
            )


def attend_visible(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    visible_keys: Tensor,
    settings: AttentionSettings,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    statistics: str = "none",
    weights_wanted: bool = False,
) -> AttentionResult:
    """`relu_attention`, or the reference where weights are wanted or the mask is a whole one.

    Args:
        query: (batch, heads, queries, head_dim). key, value: (batch, key_heads, keys, head_dim); heads share keys in groups.
        visible_keys: n_i, (batch or 1, heads or 1, queries or 1).
        scale, dropout_p, statistics: as in `relu_attention`.
    """
    visible_keys = visible_keys.to(wide(query.dtype))
    row_scale = scale_of_rows(visible_keys, settings.scaling, gamma=settings.gamma, alpha=settings.alpha)
    options = {
        "row_scale": None if row_scale is None else row_scale.expand(query.shape[0], -1, query.shape[2]),
        "activation": settings.activation,
        "scale": scale,
        "dropout_p": dropout_p,
        "statistics": statistics,
    }
    if weights_wanted or visibility.given_mask is not None:
        mask = visibility.dense(query.shape[2], key.shape[2], query.device)
        if mask is not None:  # what a key holds that no query sees, NaN for one, must not reach a product
            unseen = ~mask.any(dim=2).any(dim=1)[:, None, :, None]
            key, value = key.masked_fill(unseen, 0.0), value.masked_fill(unseen, 0.0)
        return reference_attention(query, key, value, mask=mask, **options)
    options |= {name: getattr(visibility, name) for name in ("causal", "key_padding_mask", "query_offset")}
    found = relu_attention(query, key, value, scaling="none", **options)
    output, *sums = found if isinstance(found, tuple) else (found,)
    return AttentionResult(output, None, *sums)
