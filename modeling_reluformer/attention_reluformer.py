"""What attention computes: its activations, the keys that a query can see with the row scale that follows, and the
reference.

Needs torch alone, and imports nothing of this package. For query i, with c = 1/sqrt(head_dim), the activation h and the
row scale r_i:

    weight_ij = r_i · h(c · q_i·k_j)  for visible j, else 0            point-wise (Eq. 6 with its r_i)
    weight_i  = h(c · q_i·k_·)        over the visible j               softmax, sparsemax, entmax15
    S_i = sum_j weight_ij      T_i = sum_j weight_ij log weight_ij  so that the row entropy is H_i = log S_i - T_i / S_i

    visible(b, i, j) = key_padding_mask[b, j]  and  (j <= i + query_offset, if causal)  and  (same segment, if packed)
                       and  (j > i + query_offset - window, in a sliding window)
    r_i = 1 / (gamma sqrt(n_i / 2))   variance (Eq. 6)        r_i = n_i^-alpha   length        r_i = 1   none

n_i, the number of keys that query i can see, follows from one rule for padding, causality, windows, caches and packed
sequences.
"""

from __future__ import annotations

import functools
import importlib
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ATTENTION_SCALINGS = ("variance", "length", "none")
# The paper gives no value. In our studies 16 was the best or as good as the best from 15 to 1,024 tokens.
DEFAULT_GAMMA = 16.0
DEFAULT_ALPHA = 1.0
LARGEST_ALPHA = 2  # the text of arXiv 2309.08586 says 1; the axes of its figures seem to run further


# Each weight depends on its own score alone; the row is then scaled by r_i. Messages list the names in this order.
POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu2": lambda scores: torch.relu(scores).square(),
    "relu6": nn.functional.relu6,
    "gelu": nn.functional.gelu,
    "softplus": nn.functional.softplus,
    "identity": lambda scores: scores,
    "sigmoid": torch.sigmoid,
}
# Each row of weights sums to one; keys compete.
NORMALIZED = ("softmax", "sparsemax", "entmax15")
# Weights that can be read as an unnormalised distribution: S, H and L_reg (Eq. 7) are defined for these alone.
NON_NEGATIVE = tuple(name for name in POINTWISE if name not in ("gelu", "identity"))
STATISTICS = ("none", "sum", "sum+entropy")  # of a row: nothing, S, S and T


@dataclass(frozen=True)
class Visibility:
    """What every attention function needs to know for its mask, in compact form.

    key_padding_mask: boolean (batch, keys), True for real tokens; None: all are real.
    causal: whether key j is visible to query i only if j <= i + query_offset.
    query_offset: number of keys before the first query (the length of the cache): int, or a tensor for a static cache.
    query_segments, key_segments: (batch, queries) and (batch, keys), sequence numbers from 1 of packed sequences.
    cu_seqlens: the `segment_ends`, where a path wants them: once for all layers, since they wait for the device.
    given_mask: boolean (batch, 1, queries, keys), a whole mask given by the caller; replaces all of the others.
    window: of causal attention, whether key j is visible to query i only if j > i + query_offset - window. For example,
        with 3 query 10 sees the keys 8, 9 and 10. None: all keys before it too.
    """

    key_padding_mask: Tensor | None = None
    causal: bool = False
    query_offset: int | Tensor = 0
    query_segments: Tensor | None = None
    key_segments: Tensor | None = None
    cu_seqlens: tuple[Tensor, Tensor] | None = None
    given_mask: Tensor | None = None
    window: int | None = None

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """The mask as booleans that broadcast to (batch, heads, queries, keys); None where every key is visible."""
        if self.given_mask is not None:
            return self.given_mask
        masks = []
        if self.key_padding_mask is not None:
            masks.append(self.key_padding_mask[:, None, None, :])
        if self.causal and not self._hides_nothing(queries, keys):
            last_key = (torch.arange(queries, device=device) + self.query_offset)[None, None, :, None]
            key = torch.arange(keys, device=device)
            masks.append(key <= last_key)
            if self.window is not None:
                masks.append(key > last_key - self.window)
        if self.query_segments is not None:
            masks.append((self.query_segments[:, :, None] == self.key_segments[:, None, :]).unsqueeze(1))
        return functools.reduce(torch.logical_and, masks) if masks else None

    def count(self, batch: int, queries: int, keys: int, device: torch.device) -> Tensor:
        """n_i, the number of visible keys of each query, (batch, queries), float32, at least 1 (a row may see
        nothing)."""
        if self.given_mask is not None:
            counts = self.given_mask[:, 0].sum(-1)
        elif self.query_segments is not None:
            counts = self._seen_in_causal_segments() if self.causal else self._segment_lengths()
        elif self.causal and not self._hides_nothing(queries, keys):
            offset = within(self.query_offset, -queries, keys if self.window is None else keys + self.window)
            last = torch.arange(queries, device=device) + offset
            counts = self._real_keys_up_to(last.clamp(0, keys - 1), batch)
            if self.window is not None:
                hidden = last - self.window
                counts = counts - torch.where(hidden < 0, 0, self._real_keys_up_to(hidden.clamp(0, keys - 1), batch))
        elif self.key_padding_mask is not None:
            counts = self.key_padding_mask.sum(-1, keepdim=True)
        else:
            return torch.full((batch, queries), max(keys, 1), dtype=torch.float32, device=device)
        return counts.expand(batch, queries).clamp_min(1).float()

    def segment_ends(self) -> tuple[Tensor, Tensor]:
        """`cu_seqlens` of queries and keys, int32, in the rows laid end to end. Every number that either side of a row
        has is a segment of both.

        Raises:
            ValueError: the segments are not numbered in the order in which they stand.
        """
        sides = self.query_segments.long(), self.key_segments.long()
        count = torch.maximum(sides[0].max(), sides[1].max()).clamp_min(0) + 1
        padded_first = torch.stack([((side[:, 0] == 0) & (side[:, -1] != 0)).any() for side in sides]).any()
        # By what the segments are sorted: padding, 0, comes first, or else last, as `count - 1`.
        orders = [torch.where(padded_first, side, (side - 1) % count).contiguous() for side in sides]
        falls = [(order.diff(dim=1) < 0).any() | (side < 0).any() for order, side in zip(orders, sides, strict=True)]
        count, *falls = torch.stack([count, *falls]).tolist()
        if any(falls):
            raise ValueError(
                "Packed sequences must be numbered from 1, in the order in which they stand, with padding (0) at one "
                f"end of all rows; got the segments {sides[falls.index(1)].tolist()}."
            )
        rows = torch.arange(len(sides[0]), device=sides[0].device).unsqueeze(1)
        numbers = torch.arange(count, device=rows.device).repeat(len(rows), 1)
        ends = (torch.searchsorted(order, numbers, right=True) + rows * order.shape[1] for order in orders)
        return tuple(nn.functional.pad(each.flatten(), (1, 0)).int() for each in ends)

    def _hides_nothing(self, queries: int, keys: int) -> bool:
        """Whether causality hides no key from any query: the usual case of one new token after a growing cache."""
        if keys == 0 or not isinstance(self.query_offset, int):
            return keys == 0
        in_window = self.window is None or self.window >= self.query_offset + queries
        return in_window and self.query_offset + 1 >= keys

    def _real_keys_up_to(self, last: Tensor, batch: int) -> Tensor:
        """Number of real keys j <= last, (queries,), which are keys; (batch or 1, queries)."""
        last = last.unsqueeze(0)
        if self.key_padding_mask is None:
            return last + 1
        return self.key_padding_mask.cumsum(-1).gather(1, last.expand(batch, -1))

    def _seen_in_causal_segments(self) -> Tensor:
        """Number of real keys from the start of each query's segment, or of its window, up to the query, (batch,
        queries)."""
        positions = positions_from_segments(self.query_segments)
        if self.window is not None:
            positions = positions.clamp_max(self.window - 1)
        if self.key_padding_mask is None:
            return positions + 1
        seen = self.key_padding_mask.cumsum(-1)
        starts = torch.arange(seen.shape[1], device=seen.device) - positions
        return seen - (seen - self.key_padding_mask.long()).gather(1, starts)

    def _segment_lengths(self) -> Tensor:
        """Number of real keys in the segment of each query, (batch, queries)."""
        segments = self.key_segments
        if self.key_padding_mask is not None:
            segments = segments.masked_fill(~self.key_padding_mask, -1)  # of no query
        in_order = segments.sort(dim=-1).values
        wanted = self.query_segments.contiguous()
        return torch.searchsorted(in_order, wanted, right=True) - torch.searchsorted(in_order, wanted)


def within(offset: int | Tensor, low: int, high: int) -> int | Tensor:
    """The offset, where it makes no difference nearer to 0, so that no sum with it overflows."""
    return offset.long().clamp(low, high) if isinstance(offset, Tensor) else max(low, min(offset, high))


def sinusoidal_table(positions: int, features: int) -> Tensor:
    """Sinusoidal positions, (positions, features) in float64: sines in the first half of the features, cosines in the
    second."""
    rates = 10000.0 ** (-torch.arange(0, features, 2, dtype=torch.float64, device="cpu") / features)
    angles = torch.arange(positions, dtype=torch.float64, device="cpu").unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()[:, : features // 2]], dim=1)


def positions_from_segments(segments: Tensor) -> Tensor:
    """Position of each token in its packed sequence, from 0; equal numbers must stand side by side. (batch,
    queries)."""
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(starts, index, 0).cummax(dim=1).values


def scale_of_rows(
    visible_keys: Tensor, scaling: str, *, gamma: float | Tensor | None = None, alpha: float | None = None
) -> Tensor | None:
    """r_i, in the shape and dtype of `visible_keys`; None for 1.

    visible_keys: n_i, (batch, 1 or heads, queries), at least 1. scaling: one of `ATTENTION_SCALINGS`. gamma: of
    "variance", a number or (heads,); None: the caller divides by it. alpha: of "length"; default 1.
    """
    if scaling == "none":
        return None
    if scaling == "length":
        return visible_keys.pow(-(DEFAULT_ALPHA if alpha is None else alpha))
    scale = (visible_keys / 2).rsqrt_()
    if gamma is None:
        return scale
    return scale / gamma.to(scale.dtype).view(-1, 1) if isinstance(gamma, Tensor) else scale.div_(gamma)


def check_row_scale(scaling: str, gamma: object, alpha: object, prefix: str = "") -> None:
    """Refuses an unknown scaling, and a gamma or alpha out of its range; None and tensors of gamma pass.

    prefix: of their names in the message, such as "attention_" for the fields of a configuration.

    Raises:
        ValueError: what was given and what was expected.
    """
    if scaling not in ATTENTION_SCALINGS:
        raise ValueError(f"{prefix}scaling={scaling!r} is unknown; choose one of {', '.join(ATTENTION_SCALINGS)}.")
    if gamma is not None and not isinstance(gamma, Tensor) and not (is_number(gamma) and 0 < gamma < math.inf):
        raise ValueError(f"{prefix}gamma={described(gamma)} must be a finite number above 0.")
    if alpha is not None and not (is_number(alpha) and 0 <= alpha <= LARGEST_ALPHA):
        raise ValueError(f"{prefix}alpha={described(alpha)} must be a number from 0 to {LARGEST_ALPHA}.")


# Of a number in a configuration: what must hold, and how that is said.
RULES: dict[str, Callable[[float], bool]] = {
    "lie in [0, 1)": lambda number: 0 <= number < 1,
    "lie in (0, 1]": lambda number: 0 < number <= 1,
    "lie in [0, 1]": lambda number: 0 <= number <= 1,
    "be a finite number above 0": lambda number: 0 < number < math.inf,
    "be a finite number of at least 0": lambda number: 0 <= number < math.inf,
    "be at least 1": lambda number: number >= 1,
}


def require(config: Any, rule: str, *names: str) -> None:
    """Raises a `ValueError` that names the field, its value and the rule, one of `RULES`, that it breaks."""
    for name in names:
        if not RULES[rule](getattr(config, name)):
            raise ValueError(f"{name}={getattr(config, name)} must {rule}.")


def check_attention_fields(config: Any) -> None:
    """Checks what every configuration says of its attention: each number's range, and fields that exclude each other.

    config: an `AttentionConfig` with its defaults filled in, or what was read from its config.json.

    Raises:
        ValueError: the field, its value, and what is allowed.
    """
    activation = config.attention_activation
    check_row_scale(config.attention_scaling, config.attention_gamma, config.attention_alpha, prefix="attention_")
    if activation in NORMALIZED and config.attention_scaling != "none":
        raise ValueError(
            f"attention_scaling={config.attention_scaling!r} is for point-wise activations; rows of {activation!r} "
            f"sum to one already. Use 'none', or one of the activations {', '.join(POINTWISE)}."
        )
    if config.attention_gamma_learnable and config.attention_scaling != "variance":
        raise ValueError(
            "attention_gamma_learnable=True needs attention_scaling='variance', where gamma is; "
            f"it is {config.attention_scaling!r}."
        )
    if config.regularization_weight != 0 and activation not in NON_NEGATIVE:
        raise ValueError(
            f"regularization_weight={config.regularization_weight} needs point-wise weights that are never negative "
            f"({', '.join(NON_NEGATIVE)}), since it takes their logarithm; attention_activation is {activation!r}. "
            "Use 0."
        )
    require(config, "lie in [0, 1]", "entropy_margin")
    require(config, "be a finite number of at least 0", "regularization_weight")


def check_regularization_share(config: Any, modules: int) -> None:
    """Raises a `ValueError` for a `regularization_share` outside (0, 1], or of less than one of the `modules` of
    attention, with which some passes would measure none."""
    require(config, "lie in (0, 1]", "regularization_share")
    if config.regularization_share * modules < 1 - 1e-9:  # 1/49 · 49 is a little less than 1
        raise ValueError(
            f"regularization_share={config.regularization_share} is less than one of the {modules} attention modules; "
            f"give at least 1/{modules}, {math.ceil(1e4 / modules) / 1e4}."
        )


def is_number(value: object) -> bool:
    """Whether it is one real number: of Python or numpy, or a size that a compiled graph does not know yet."""
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat, numbers.Real))


def described(value: object) -> str:
    """What a message says of an argument: dtype and shape of a tensor, else the value, or its type where it is long."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of row scales and statistics: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


# The reference: any floating dtype, every activation, returns the weights. The oracle of the fast paths.


class AttentionResult(NamedTuple):
    """What an attention function of this package returns. A field that was not asked for is None.

    output: (batch, heads, queries, head_dim), in the value's dtype. weights: (batch, heads, queries, keys), before
        dropout.
    row_sum, row_sum_log: S and T, (batch, heads, queries), float32 (float64 for float64 inputs).
    """

    output: Tensor
    weights: Tensor | None = None
    row_sum: Tensor | None = None
    row_sum_log: Tensor | None = None


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    activation: str,
    mask: Tensor | None = None,
    row_scale: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    statistics: str = "none",
) -> AttentionResult:
    """Attention with all its weights in memory, which grows with queries × keys.

    Args:
        query: (batch, heads, queries, head_dim). key, value: (batch, key_heads, keys, head_dim); neighbouring query
            heads share a head of keys.
        activation: one of `POINTWISE` and `NORMALIZED`.
        mask: boolean, broadcastable to (batch, heads, queries, keys), True where the key is visible.
        row_scale: r_i, broadcastable to (batch, heads, queries); point-wise activations only.
        scale: c; default 1/sqrt(head_dim).
        dropout_p: applied to the weights; the statistics and the returned weights are those before it.
        statistics: "none", "sum" (S) or "sum+entropy" (S and T).

    Raises:
        ValueError: unknown activation, or a row scale for one whose rows sum to one. ImportError: `entmax` is missing.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if (group := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = torch.matmul(query * scale, key.transpose(-1, -2))
    if activation in POINTWISE:
        weights = POINTWISE[activation](scores)
        if mask is not None:
            # `where`, not an additive mask: gelu(-inf) and identity(-inf) are not zero
            weights = torch.where(mask, weights, weights.new_zeros(()))
        if row_scale is not None:
            weights = weights * row_scale.unsqueeze(-1).to(weights.dtype)
    else:
        if row_scale is not None:
            raise ValueError(
                f"row_scale was given for {activation!r}, whose rows sum to one; it is for {', '.join(POINTWISE)}."
            )
        weights = _normalized_weights(scores, activation, mask)
    row_sum, row_sum_log = _row_statistics(weights, statistics)
    dropped = nn.functional.dropout(weights, p=dropout_p) if dropout_p > 0 else weights
    return AttentionResult(torch.matmul(dropped.to(value.dtype), value), weights, row_sum, row_sum_log)


def _normalized_weights(scores: Tensor, activation: str, mask: Tensor | None) -> Tensor:
    if activation not in NORMALIZED:
        raise ValueError(
            f"attention activation {activation!r} is unknown; choose one of {', '.join((*POINTWISE, *NORMALIZED))}."
        )
    if activation == "softmax":
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)
    else:
        # Both search a threshold by sums of scores and of their squares. Half precision is too coarse for that, and so
        # are sums with the huge negative numbers of a mask. A score 2 below the highest gets no weight from either, so
        # 4 below hides a key exactly.
        exact = scores.to(wide(scores.dtype))
        if mask is not None:
            highest = exact.masked_fill(~mask, torch.finfo(exact.dtype).min).amax(dim=-1, keepdim=True)
            exact = torch.where(mask, exact, highest - 4)
        entmax = importlib.import_module("entmax")  # an optional extra, which a copy on the Hub must not ask for
        weights = getattr(entmax, activation)(exact, dim=-1).to(scores.dtype)
    # A row that sees nothing gives zeros, as with every point-wise activation, not the mean over its padding.
    return weights if mask is None else torch.where(mask, weights, weights.new_zeros(()))


def _row_statistics(weights: Tensor, statistics: str) -> tuple[Tensor | None, Tensor | None]:
    if statistics == "none":
        return None, None
    if statistics not in STATISTICS:
        raise ValueError(f"statistics={statistics!r} is unknown; choose one of {', '.join(STATISTICS)}.")
    weights = weights.to(wide(weights.dtype))
    row_sum = weights.sum(-1)
    if statistics == "sum":
        return row_sum, None
    # s·log s with a clamped logarithm: xlogy and friends have NaN gradients at 0
    logarithm = torch.log(weights.clamp_min(torch.finfo(torch.float32).tiny))
    return row_sum, (weights * logarithm).sum(-1)
