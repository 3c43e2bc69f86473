"""Multi-head ReLU attention with the interface of `torch.nn.MultiheadAttention`. Needs torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
from ..loss_reluformer import DEFAULT_ENTROPY_MARGIN, row_entropy, row_penalty
from .attention import relu_attention
from .specification import check_scaling


class ReLUAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with a point-wise activation and a row scale (Eq. 6) in place of the softmax.

    Parameters, their names and initialisation, and thus state_dict, are those of `nn.MultiheadAttention`, and so are the
    arguments, shapes and results of a call. The layers of `nn.Transformer` take it as their `self_attn` and `multihead_attn`;
    their fast path, which computes a softmax without asking the module, leaves it alone.

    Without weights and with no mask but padding and `is_causal`, memory grows with the length. `need_weights`, which is the
    default here too, and any other `attn_mask` keep all weights in memory. The weights that a call returns are those before
    dropout; their rows need not sum to 1.

    Args:
        embed_dim, num_heads, dropout, bias, kdim, vdim, batch_first, device, dtype: as in `nn.MultiheadAttention`, but
            dropout lies below 1.
        add_bias_kv, add_zero_attn: not supported.
        activation: a name of `attention_reluformer.POINTWISE`.
        scaling, gamma, alpha: of the row scale, as in `relu_attention`. gamma: default 8, which suits sentences of about 15
            tokens; for n tokens, sqrt(2 n) is a good start.
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
        if activation not in POINTWISE:
            raise ValueError(
                f"activation={activation!r} is not point-wise; choose one of {', '.join(POINTWISE)}. For softmax, use "
                "nn.MultiheadAttention."
            )
        check_scaling(scaling, gamma, alpha)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout!r} must be a number from 0 to below 1.")
        if not 0 <= entropy_margin <= 1:
            raise ValueError(f"entropy_margin={entropy_margin!r} must be a number from 0 to 1.")
        if return_regularization:
            _refuse_negative(activation)
        options = {"kdim": kdim, "vdim": vdim, "batch_first": batch_first, "device": device, "dtype": dtype}
        super().__init__(embed_dim, num_heads, dropout, bias, **options)
        self.activation = activation
        self.scaling = scaling
        self.gamma = DEFAULT_GAMMA if gamma is None and scaling == "variance" else gamma
        self.alpha = DEFAULT_ALPHA if alpha is None and scaling == "length" else alpha
        self.entropy_margin = entropy_margin
        self.return_regularization = return_regularization

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # True would let the fast path of nn.TransformerEncoderLayer and nn.TransformerEncoder compute a softmax instead.
        self._qkv_same_embed_dim = False

    def extra_repr(self) -> str:
        scale = {"variance": f", gamma={self.gamma}", "length": f", alpha={self.alpha}", "none": ""}[self.scaling]
        return f"activation={self.activation!r}, scaling={self.scaling!r}{scale}"

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
            query, key, value: (length, batch, features), with `batch_first` (batch, length, features), or (length, features).
            key_padding_mask: (batch, keys), without a batch (keys,), True (or -inf) where a key is padding.
            need_weights, average_attn_weights: as there.
            attn_mask: (queries, keys) or (batch · heads, queries, keys), True (or -inf) where a key is hidden. A mask of
                numbers may hold 0 and -inf alone: a point-wise weight cannot be hidden by what is added to its score.
            is_causal: query i sees the keys j <= i, and `attn_mask` is not read.
            query_padding_mask: as `key_padding_mask`, of the rows that do not count in L_reg. Default: `key_padding_mask`
                in self-attention (where `query is key`), else none.
            return_regularization: default as in the constructor.

        Returns:
            The output, in the shape of the query; the weights (batch, queries, keys), or (batch, heads, queries, keys), or
            None; and, where it is wanted, L_reg: a scalar, the mean of Eq. 7 over the heads and all real rows of the batch.

        Raises:
            ValueError: shapes or masks that do not fit, or L_reg of an activation that may be negative.
        """
        wanted = self.return_regularization if return_regularization is None else return_regularization
        if wanted:
            _refuse_negative(self.activation)
        self._check(query, key, value)
        if query_padding_mask is None and query is key:
            query_padding_mask = key_padding_mask
        heads = self._project(query, key, value)
        visibility = self._visibility(heads, key_padding_mask, attn_mask, is_causal)
        found, visible_keys = self._attend(heads, visibility, need_weights, "sum+entropy" if wanted else "none")
        output, weights = (
            self.out_proj(found.output.transpose(1, 2).flatten(2)),
            found.weights if need_weights else None,
        )
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if query.dim() == 2:
            output, weights = output.squeeze(0), None if weights is None else weights.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return (
            (output, weights, self._regularization(found, visible_keys, query_padding_mask))
            if wanted
            else (output, weights)
        )

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.is_nested:
            raise ValueError(
                "ReLUAttention was given a nested tensor, which it does not take. nn.TransformerEncoder makes one of padded "
                "input: build it with enable_nested_tensor=False, or after the attention was put into its layer."
            )
        batch_dim = 0 if self.batch_first else 1
        fits = query.dim() in (2, 3) and query.dim() == key.dim() and key.shape[:-1] == value.shape[:-1]
        fits = fits and (query.dim() == 2 or query.shape[batch_dim] == key.shape[batch_dim])
        if not fits or (query.shape[-1], key.shape[-1], value.shape[-1]) != (self.embed_dim, self.kdim, self.vdim):
            order = "(batch, length, features)" if self.batch_first else "(length, batch, features)"
            raise ValueError(
                f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit: expected "
                f"{order}, or (length, features), with {self.embed_dim}, {self.kdim} and {self.vdim} features, one batch size, "
                "and keys and values of one length."
            )

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
        return tuple(self._split_heads(states) for states in projected)

    def _split_heads(self, states: Tensor) -> Tensor:
        if states.dim() == 2:
            states = states.unsqueeze(0)
        elif not self.batch_first:
            states = states.transpose(0, 1)
        return states.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _visibility(
        self, heads: tuple[Tensor, ...], key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool
    ) -> Visibility:
        batch, keys = heads[1].shape[0], heads[1].shape[2]
        real = None
        if key_padding_mask is not None:
            if key_padding_mask.shape not in ((batch, keys), (keys,) if batch == 1 else ()):
                raise ValueError(
                    f"key_padding_mask must have the shape (batch, keys) = ({batch}, {keys}); got "
                    f"{tuple(key_padding_mask.shape)}."
                )
            real = ~_as_boolean(key_padding_mask, "key_padding_mask").view(batch, keys)
        if is_causal or attn_mask is None:
            return Visibility(real, causal=is_causal)
        queries = heads[0].shape[2]
        whole = (queries, keys), (batch * self.num_heads, queries, keys)
        if attn_mask.shape not in whole:
            raise ValueError(
                f"attn_mask must have the shape (queries, keys) = {whole[0]} or (batch · heads, queries, keys) = {whole[1]}; "
                f"got {tuple(attn_mask.shape)}."
            )
        shape = (batch, self.num_heads, queries, keys) if attn_mask.dim() == 3 else (1, 1, queries, keys)
        visible = ~_as_boolean(attn_mask, "attn_mask").view(shape)
        return Visibility(given_mask=visible if real is None else visible & real[:, None, None, :])

    def _attend(
        self, heads: tuple[Tensor, ...], visibility: Visibility, need_weights: bool, statistics: str
    ) -> tuple[AttentionResult, Tensor]:
        """What the attention gives, and n_i, (batch or 1, heads or 1, queries)."""
        query, key, value = heads
        batch, _, queries, _ = query.shape
        keys, whole = key.shape[2], visibility.given_mask
        if whole is None:
            visible_keys = visibility.count(batch, queries, keys, query.device).unsqueeze(1)
        else:
            visible_keys = whole.sum(-1).clamp_min(1)
        visible_keys = visible_keys.to(wide(query.dtype))
        options = {
            "activation": self.activation,
            "row_scale": scale_of_rows(visible_keys, self.scaling, gamma=self.gamma, alpha=self.alpha),
            "dropout_p": self.dropout if self.training else 0.0,
            "statistics": statistics,
        }
        if need_weights or whole is not None:
            mask = visibility.dense(queries, keys, query.device)
            if mask is not None:  # what a key holds that no query sees, NaN for one, must not reach a product
                unseen = ~mask.any(dim=-2).unsqueeze(-1)
                key, value = key.masked_fill(unseen, 0.0), value.masked_fill(unseen, 0.0)
            return reference_attention(query, key, value, mask=mask, **options), visible_keys
        options |= {"causal": visibility.causal, "key_padding_mask": visibility.key_padding_mask}
        found = relu_attention(query, key, value, scaling="none", **options)
        output, *sums = found if isinstance(found, tuple) else (found,)
        return AttentionResult(output, None, *sums), visible_keys

    def _regularization(self, found: AttentionResult, visible_keys: Tensor, row_padding: Tensor | None) -> Tensor:
        penalties = row_penalties(found, visible_keys, self.entropy_margin)
        if row_padding is None:
            return penalties.mean()
        hidden = _as_boolean(row_padding, "query_padding_mask").view(penalties.shape[0], penalties.shape[2])
        real = ~hidden.unsqueeze(1).expand_as(penalties)
        return (penalties * real).sum() / real.sum().clamp_min(1)


def row_penalties(found: AttentionResult, visible_keys: Tensor, entropy_margin: float) -> Tensor:
    """Eq. 7 for each row, (batch, heads, queries), of heads that need not see the same keys.

    found: with S and T. visible_keys: n_i, (batch or 1, heads or 1, queries or 1).
    """
    row_sum, row_sum_log = found.row_sum, found.row_sum_log
    counts = visible_keys.to(row_sum.dtype).expand(row_sum.shape).flatten(0, 1)
    entropy = row_entropy(row_sum, row_sum_log)
    # each head as a sequence of its own: `row_penalty` takes one n_i for all heads
    one_head = (tensor.flatten(0, 1).unsqueeze(1) for tensor in (row_sum, entropy))
    return row_penalty(*one_head, counts, entropy_margin).view(row_sum.shape)


def _refuse_negative(activation: str) -> None:
    if activation not in NON_NEGATIVE:
        raise ValueError(
            f"L_reg needs weights that are never negative ({', '.join(NON_NEGATIVE)}); those of {activation!r} can be. "
            "Use return_regularization=False."
        )


def _as_boolean(mask: Tensor, name: str) -> Tensor:
    """True where a key is hidden."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be boolean, True where a key is hidden, or floating; got {mask.dtype}.")
    hidden = mask == float("-inf")
    _require(
        hidden | (mask == 0),
        f"{name} has the dtype {mask.dtype} and other values than 0 and -inf. ReLUAttention adds nothing to its scores: give a "
        "boolean mask, True where a key is hidden.",
    )
    return hidden


def _require(condition: Tensor, message: str) -> None:
    """All of the condition, within a compiled graph too."""
    if torch.compiler.is_compiling():
        torch._assert_async(condition.all(), message)
    elif not condition.all():
        raise ValueError(message)
