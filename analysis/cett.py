"""Which activations of a feed-forward block can be dropped at a given error: CETT, and the threshold that reaches it.

Neuron i adds `a_i w_i` to the output of its block, where `a_i` is its activation and `w_i` its column of the last projection.
With a threshold e it is dropped where `|a_i| ‖w_i‖ < e`. The cumulative error of tail truncation (arXiv 2411.02335) is the mean
over tokens of

    CETT(e) = ‖Σ_dropped a_i w_i‖ / ‖Σ_all a_i w_i‖

Biases are left out of both norms. The threshold of a CETT is searched as in the public code of that paper (thunlp/SparsingLaw,
MIT): among 65,536 candidates, evenly spaced from the smallest product `|a_i| ‖w_i‖` to the 99 % quantile of a sample of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

CANDIDATES = 65_536
_QUANTILE = 0.99  # the extreme products are no candidates


class TailTruncation:
    """The thresholds of one block on the activations of a text.

    Args:
        activations: (tokens, neurons), what the last projection multiplies.
        value_slots: (features, neurons), its weight.
    """

    def __init__(self, activations: Tensor, value_slots: Tensor) -> None:
        wide = torch.promote_types(activations.dtype, torch.float32)
        self.activations, self.value_slots = activations.to(wide), value_slots.detach().to(activations.device, wide)
        self.slot_norms = self.value_slots.norm(dim=0)
        self._output_norms = (self.activations @ self.value_slots.T).norm(dim=-1)
        products = self._products()
        sample = products.flatten()[:: max(products.numel() // CANDIDATES, 1)]
        self._candidates = torch.linspace(
            float(products.min()), float(sample.quantile(_QUANTILE)), CANDIDATES, dtype=wide
        )
        self._errors: dict[int, float] = {}

    def threshold(self, cett: float) -> float:
        """The largest candidate that a bisection finds with at most this CETT; 0, which drops nothing, where there is none."""
        least, most = 0, CANDIDATES - 1
        while least < most:
            middle = (least + most) // 2
            if self._error(middle) > cett:
                most = middle
            else:
                least = middle + 1
        return float(self._candidates[least - 1]) if least else 0.0

    def cett(self, threshold: float) -> float:
        """CETT of a threshold; a token whose output is 0 counts as 0 where nothing is lost."""
        dropped = torch.where(self._products() <= threshold, self.activations, 0.0)
        lost = (dropped @ self.value_slots.T).norm(dim=-1)
        return float(torch.where(lost == 0, 0.0, lost / self._output_norms).mean())

    def _products(self) -> Tensor:
        return self.activations.abs() * self.slot_norms

    def _error(self, candidate: int) -> float:
        if candidate not in self._errors:  # the searches of many CETTs pass the same candidates
            self._errors[candidate] = self.cett(float(self._candidates[candidate]))
        return self._errors[candidate]


def below(activations: Tensor, threshold: float, slot_norms: Tensor) -> Tensor:
    """Which of the activations (…, neurons) a threshold drops; `slot_norms` (neurons,) are the `‖w_i‖`."""
    return activations.abs() < threshold / slot_norms
