"""What the feed-forward networks of all models share: how their activations become zero, and the L1 norm for the loss."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from .configuration_feed_forward import FeedForwardConfig
from .visibility_reluformer import wide


class SparseActivation(nn.Module):
    """An activation with more zeros: statistical top-k of the scores, the function, a threshold, exact top-k, in this order.

    Args:
        function: the activation.
        sparsity: share of the scores that the statistical top-k takes for 0; 0: it is left out.
        threshold: activations of a smaller magnitude become 0.
        top_k: how many activations of a token are kept, those of the largest magnitude; None: all.

    `negative_probability`, which training may set, makes a ReLU stochastic: in training mode each score below 0 goes through
    SiLU with this probability.
    """

    def __init__(
        self, function: nn.Module, sparsity: float = 0.0, threshold: float = 0.0, top_k: int | None = None
    ) -> None:
        super().__init__()
        self.function, self.sparsity, self.threshold, self.top_k = function, sparsity, threshold, top_k
        self.quantile = NormalDist().inv_cdf(sparsity) if sparsity else None
        self.negative_probability = 0.0

    def forward(self, scores: Tensor) -> Tensor:
        """(…, neurons) → the same."""
        if self.quantile is not None:
            scores = statistical_top_k(scores, self.quantile)
        activated = self.function(scores)
        if self.training and self.negative_probability > 0:
            drawn = torch.rand_like(scores, dtype=torch.float32) < self.negative_probability
            activated = torch.where(drawn & (scores < 0), nn.functional.silu(scores), activated)
        if self.threshold > 0:
            activated = activated.masked_fill(activated.abs() < self.threshold, 0)
        if self.top_k is not None:
            kept = activated.abs().topk(self.top_k, dim=-1).indices
            activated = torch.zeros_like(activated).scatter(-1, kept, activated.gather(-1, kept))
        return activated

    @property
    def gives_exact_zeros(self) -> bool:
        """Whether activations are exactly 0 other than by chance, for `use_sparse_ffn`."""
        below, at_zero = self.function(torch.tensor([-1.0, 0.0])).tolist()
        return bool(self.threshold or self.top_k) or below == 0 or (self.quantile is not None and at_zero == 0)

    def extra_repr(self) -> str:
        return f"sparsity={self.sparsity}, threshold={self.threshold}, top_k={self.top_k}"


def statistical_top_k(scores: Tensor, quantile: float) -> Tensor:
    """`relu(scores - (mean + std · quantile))` over the last dimension, as in Gemma 3n; the deviation is the biased one."""
    deviation, mean = torch.std_mean(scores, dim=-1, keepdim=True, correction=0)
    return nn.functional.relu(scores - (mean + deviation * quantile))


class FeedForward(nn.Module):
    """The base of what holds a feed-forward network; its `activation_fn` is made by `feed_forward_activation`."""

    activation_fn: nn.Module | None

    def set_zeros(self, *, threshold: float | None = None, negative_probability: float | None = None) -> None:
        """Changes what a schedule changes during training (see `SparseActivation`); None leaves it as it is."""
        if not isinstance(self.activation_fn, SparseActivation):
            if not threshold and not negative_probability:
                return
            self.activation_fn = SparseActivation(self.activation_fn).train(self.training)
        if threshold is not None:
            self.activation_fn.threshold = threshold
        if negative_probability is not None:
            self.activation_fn.negative_probability = negative_probability


def feed_forward_activation(config: FeedForwardConfig, activation: str, layer: int) -> nn.Module:
    """The activation of the FFN of one layer, which is that of `ACT2FN` itself where the configuration asks for no more zeros."""
    function, sparsity = ACT2FN[activation], config.sparsity_of_layer(layer)
    if not sparsity and not config.ffn_threshold and config.ffn_top_k is None:
        return function
    return SparseActivation(function, sparsity, config.ffn_threshold, config.ffn_top_k)


def activation_norms(activations: Tensor, row_weight: Tensor) -> Tensor:
    """The weighted sum of `‖a‖₁` over the rows, (1,).

    Args:
        activations: (batch, length, neurons), what the last projection multiplies.
        row_weight: (batch, length), see `row_weights`.
    """
    norms = activations.abs().sum(dim=-1, dtype=wide(activations.dtype))
    return (norms * row_weight).sum().unsqueeze(0)


__all__ = ["FeedForward", "SparseActivation", "activation_norms", "feed_forward_activation", "statistical_top_k"]
