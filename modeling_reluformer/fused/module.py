"""Multi-head ReLU attention with the interface of `torch.nn.MultiheadAttention`, and what other models share with it.

Needs torch alone.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from ..attention_reluformer import (
    DEFAULT_ALPHA,
    DEFAULT_GAMMA,
    NON_NEGATIVE,
    POINTWISE,
    AttentionResult,
    Visibility,
    described,
    is_number,
    reference_attention,
    scale_of_rows,
    wide,
)
from ..loss_reluformer import DEFAULT_ENTROPY_MARGIN, row_entropy, row_penalty
from .attention import relu_attention
from .specification import check_scaling, shape_of


@dataclass(frozen=True)
class AttentionSettings:
    """What an attention computes.

    activation: a name of `attention_reluformer.POINTWISE`.
    scaling, gamma, alpha: of the row scale, as in `relu_attention`. Defaults: gamma 16, alpha 1.
    regularization_weight: λ of L_reg (Eq. 7), for activations whose weights are never negative; 0: it is not computed.
    entropy_margin: of L_reg, in [0, 1].

    Raises:
        ValueError: a bad value, or one that the scaling does not use.
    """

    activation: str = "relu"
    scaling: str = "variance"
    gamma: float | None = None
    alpha: float | None = None
    regularization_weight: float = 0.0
    entropy_margin: float = DEFAULT_ENTROPY_MARGIN

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> AttentionSettings:
        """The settings that a caller or a configuration names.

        Raises:
            TypeError: an unknown setting. ValueError: as the constructor.
        """
        for name in settings.keys() - set(SETTINGS):
            near = difflib.get_close_matches(name.removeprefix("attention_"), SETTINGS, n=1)
            guess = f"did you mean {near[0]}? They" if near else "they"
            raise TypeError(f"{name!r} is no setting of ReLU attention; {guess} are {', '.join(SETTINGS)}.")
        return cls(**settings)

    def __post_init__(self) -> None:
        if self.activation not in POINTWISE:
            raise ValueError(
                f"activation={self.activation!r} is not point-wise; choose one of {', '.join(POINTWISE)}. For softmax, "
                "use nn.MultiheadAttention, or load the model with attn_implementation='sdpa'."
            )
        for name in ("gamma", "alpha", "regularization_weight", "entropy_margin"):
            value = getattr(self, name)
            if not is_number(value) and (value is not None or name not in ("gamma", "alpha")):
                raise ValueError(f"{name} must be a number; got {described(value)}.")
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
                f"L_reg needs weights that are never negative ({', '.join(NON_NEGATIVE)}); those of "
                f"{self.activation!r} can be. Leave L_reg out, or choose another activation."
            )


SETTINGS = tuple(field.name for field in fields(AttentionSettings))  # here, as no graph of torch.compile can ask


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
        query: (batch, heads, queries, head_dim). key, value: (batch, key_heads, keys, head_dim); heads share keys in
            groups.
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
    options |= {name: getattr(visibility, name) for name in ("causal", "window", "key_padding_mask", "query_offset")}
    result = relu_attention(query, key, value, scaling="none", **options)
    output, *sums = result if isinstance(result, tuple) else (result,)
    return AttentionResult(output, None, *sums)


class ReLUAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with a point-wise activation and a row scale (Eq. 6) in place of the softmax.

    Parameters, their initialisation, and the arguments and results of a call are those of `nn.MultiheadAttention`. The
    layers of `nn.Transformer` take it as their `self_attn` and `multihead_attn`; their fast path, which computes a
    softmax without asking the module, leaves it alone.

    Without weights and with no mask but padding and `is_causal`, memory grows with the length; with `need_weights`, the
    default, or any other `attn_mask`, with its square. The weights that a call returns are those before dropout.

    Args:
        embed_dim, num_heads, dropout, bias, kdim, vdim, batch_first, device, dtype: as in `nn.MultiheadAttention`, but
            dropout lies below 1.
        add_bias_kv, add_zero_attn: not supported.
        activation: a name of `attention_reluformer.POINTWISE`.
        scaling, gamma, alpha: of the row scale, as in `relu_attention`. gamma: default 16.
        entropy_margin: of L_reg (Eq. 7), from 0 to 1.
        return_regularization: a call returns L_reg too, unless it says otherwise.

    Raises:
        ValueError: an option that is not supported, or a bad value.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "relu",
        scaling: str = "variance",
        gamma: float | None = None,
        alpha: float | None = None,
        entropy_margin: float = DEFAULT_ENTROPY_MARGIN,
        return_regularization: bool = False,
    ) -> None:
        if add_bias_kv or add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn are not supported by ReLUAttention: leave them out.")
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a number from 0 to below 1; got {described(dropout)}.")
        options = {"kdim": kdim, "vdim": vdim, "batch_first": batch_first, "device": device, "dtype": dtype}
        super().__init__(embed_dim, num_heads, dropout, bias, **options)
        self.settings = AttentionSettings(activation, scaling, gamma, alpha, entropy_margin=entropy_margin)
        self.return_regularization = return_regularization

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # True would let the fast path of nn.TransformerEncoderLayer and nn.TransformerEncoder compute a softmax
        # instead.
        self._qkv_same_embed_dim = False

    def extra_repr(self) -> str:
        names = "activation", "scaling", "gamma", "alpha"
        return ", ".join(f"{name}={value!r}" for name in names if (value := getattr(self.settings, name)) is not None)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        query_padding_mask: Tensor | None = None,
        return_regularization: bool | None = None,
    ) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
        """Attention as `nn.MultiheadAttention.forward` takes and returns it, and L_reg where it is wanted.

        Args:
            query, key, value: (length, batch, features), with `batch_first` (batch, length, features), or (length,
                features).
            key_padding_mask: (batch, keys), without a batch (keys,), True (or -inf) where a key is padding.
            attn_mask: (queries, keys) or (batch · heads, queries, keys), True (or -inf) where a key is hidden. A mask
                of numbers may hold 0 and -inf alone: a point-wise weight cannot be hidden by what is added to its
                score.
            is_causal: query i sees the keys j <= i, and `attn_mask` is not read.
            query_padding_mask: as `key_padding_mask`, of the rows that do not count in L_reg. Default:
                `key_padding_mask` in self-attention (where `query is key`), else none.
            return_regularization: default as in the constructor.

        Returns:
            The output, in the shape of the query; the weights (batch, queries, keys), or (batch, heads, queries, keys),
            or None; and, where it is wanted, L_reg: a scalar, the mean of Eq. 7 over the heads and all real rows of the
            batch.

        Raises:
            ValueError: shapes or masks that do not fit, or L_reg of an activation that may be negative.
        """
        wanted = self.return_regularization if return_regularization is None else return_regularization
        if wanted:
            self.settings.check_regularization()
        self._check_inputs(query, key, value)
        if query_padding_mask is None and query is key:
            query_padding_mask = key_padding_mask
        batched = query.dim() == 3
        projected = self._project(query, key, value)
        visibility, visible_keys = self._visible(projected, key_padding_mask, attn_mask, is_causal)
        result = attend_visible(
            *projected,
            visibility,
            visible_keys,
            self.settings,
            dropout_p=self.dropout if self.training else 0.0,
            statistics="sum+entropy" if wanted else "none",
            weights_wanted=need_weights,
        )
        output = self.out_proj(result.output.transpose(1, 2).flatten(2))
        weights = None
        if need_weights:
            weights = result.weights.mean(1) if average_attn_weights else result.weights
            weights = weights if batched else weights.squeeze(0)
        if not batched:
            output = output.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        if not wanted:
            return output, weights
        return output, weights, self._regularization(result, visible_keys, query_padding_mask)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        if isinstance(query, Tensor) and query.is_nested:
            raise ValueError(
                "ReLUAttention was given a nested tensor, which it does not take. nn.TransformerEncoder makes one of "
                "padded input: build it with enable_nested_tensor=False, or after the attention was put into its layer."
            )
        shapes = [shape_of(tensor) for tensor in (query, key, value)]
        widths = (self.embed_dim, self.kdim, self.vdim)
        fits = all(shape is not None and len(shape) in (2, 3) for shape in shapes)
        fits = fits and len(shapes[0]) == len(shapes[1]) and shapes[1][:-1] == shapes[2][:-1]
        fits = fits and all(shape[-1] == width for shape, width in zip(shapes, widths, strict=True))
        if fits and len(shapes[0]) == 3:
            batch_axis = 0 if self.batch_first else 1
            fits = shapes[0][batch_axis] == shapes[1][batch_axis]
        if not fits:
            axes = "batch, length" if self.batch_first else "length, batch"
            raise ValueError(
                f"query, key and value must be tensors ({axes}, features), or (length, features), with {widths[0]}, "
                f"{widths[1]} and {widths[2]} features, one batch, and the same length of key and value; got "
                f"{', '.join(described(tensor) for tensor in (query, key, value))}."
            )

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """(batch, heads, length, head_dim) each."""
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key and key is value:
            projected = nn.functional.linear(query, self.in_proj_weight, bias).chunk(3, dim=-1)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
            if self.in_proj_weight is not None:
                weights = self.in_proj_weight.chunk(3)
            biases = (None, None, None) if bias is None else bias.chunk(3)
            projected = map(nn.functional.linear, (query, key, value), weights, biases)
        if query.dim() == 2:
            projected = (states.unsqueeze(0) for states in projected)
        elif not self.batch_first:
            projected = (states.transpose(0, 1) for states in projected)
        return [states.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for states in projected]

    def _visible(
        self, heads: list[Tensor], key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool
    ) -> tuple[Visibility, Tensor]:
        """Which keys are seen, and n_i, (batch or 1, heads or 1, queries)."""
        (batch, _, queries, _), keys = heads[0].shape, heads[1].shape[2]
        real = None
        if key_padding_mask is not None:
            shapes = ((batch, keys), (keys,)) if batch == 1 else ((batch, keys),)
            real = ~_as_boolean(key_padding_mask, "key_padding_mask", "(batch, keys)", shapes).view(batch, keys)
        if is_causal or attn_mask is None:
            visibility = Visibility(real, causal=is_causal)
            return visibility, visibility.count(batch, queries, keys, heads[0].device).unsqueeze(1)
        shapes = (queries, keys), (batch * self.num_heads, queries, keys)
        visible = ~_as_boolean(attn_mask, "attn_mask", "(queries, keys) or (batch · heads, queries, keys)", shapes)
        visible = visible.view(
            (batch, self.num_heads, queries, keys) if attn_mask.dim() == 3 else (1, 1, queries, keys)
        )
        if real is not None:
            visible = visible & real[:, None, None, :]
        return Visibility(given_mask=visible), visible.sum(-1).clamp_min(1)

    def _regularization(self, result: AttentionResult, visible_keys: Tensor, row_padding: Tensor | None) -> Tensor:
        entropy = row_entropy(result.row_sum, result.row_sum_log)
        penalties = row_penalty(result.row_sum, entropy, visible_keys, self.settings.entropy_margin)
        if row_padding is None:
            return penalties.mean()
        batch, _, queries = penalties.shape
        shapes = (batch, queries), (queries,)
        hidden = _as_boolean(row_padding, "query_padding_mask", "(batch, queries)", shapes).view(batch, queries)
        real = ~hidden.unsqueeze(1).expand_as(penalties)
        return (penalties * real).sum() / real.sum().clamp_min(1)


def _as_boolean(mask: Tensor, name: str, axes: str, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """True where a key is hidden."""
    if shape_of(mask) not in shapes:
        raise ValueError(
            f"{name} must be a tensor of the shape {axes} = {' or '.join(map(str, shapes))}; got {described(mask)}."
        )
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be boolean, True where a key is hidden, or floating; got {mask.dtype}.")
    hidden = mask == float("-inf")
    fits = (hidden | (mask == 0)).all()
    message = (
        f"{name} has the dtype {mask.dtype} and other values than 0 and -inf. ReLUAttention adds nothing to its "
        "scores: give a boolean mask, True where a key is hidden."
    )
    if torch.compiler.is_compiling():
        torch._assert_async(fits, message)
    elif not fits:
        raise ValueError(message)
    return hidden
