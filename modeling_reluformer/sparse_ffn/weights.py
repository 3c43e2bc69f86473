"""Weights of a projection as the loops read them: one row for each neuron, in the model's own dtype or in int8."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..visibility_reluformer import wide


class Neurons(NamedTuple):
    """weight: (neurons, features), without gaps. scale: (neurons,) float32 of int8 weights, else None. bias: None, or float32, or
    float64 with weights in it; (neurons,), of a second projection (features,)."""

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None


class PreparedWeights:
    """The `Neurons` of an `nn.Linear`, made anew where its weight or bias has changed.

    A change is seen by the version counter of the tensors, by their place and order in memory and their dtype. What is written
    through `weight.data` is not counted by torch, and is not seen.

    Args:
        linear: the projection, which stays as it is.
        transposed: neurons are its inputs, so that the second projection becomes a copy that is transposed.
        int8: round to 127 steps either way, with one scale for each neuron.
    """

    def __init__(self, linear: nn.Linear, *, transposed: bool, int8: bool) -> None:
        self.linear = linear
        self.transposed, self.int8 = transposed, int8
        self.forget()

    def forget(self) -> None:
        """Drops the copies, which the next call makes anew. To be called in training: fused optimizers do not count their
        changes."""
        self._neurons: Neurons | None = None
        self.finite = True
        # Held, so that nothing else comes to lie in their place.
        self._seen: list[Tensor | None] = [None, None]
        self._versions: list[int] = [-1, -1]

    def current(self) -> Neurons:
        """The weights as they are now.

        Raises:
            ValueError: int8 is asked for, and a weight is not finite.
        """
        weight, bias = self.linear.weight, self.linear.bias
        neurons = self._neurons  # another thread may forget it meanwhile
        if neurons is None or self._changed(0, weight) or self._changed(1, bias):
            seen = [None if tensor is None else tensor.detach() for tensor in (weight, bias)]
            versions = [-1 if tensor is None else tensor._version for tensor in (weight, bias)]
            # Before what was seen: another thread that decodes meanwhile must not take the old ones for these.
            neurons = self._neurons = self._make(*seen)
            self._seen, self._versions = seen, versions
        return neurons

    def _changed(self, place: int, tensor: Tensor | None) -> bool:
        seen = self._seen[place]
        if tensor is None or seen is None:
            return tensor is not seen
        return (
            tensor._version != self._versions[place]
            or tensor.data_ptr() != seen.data_ptr()
            or tensor.stride() != seen.stride()
            or tensor.dtype != seen.dtype
        )

    @torch.no_grad()
    def _make(self, weight: Tensor, bias: Tensor | None) -> Neurons:
        rows = (weight.t() if self.transposed else weight).contiguous()
        self.finite = bool(rows.isfinite().all())
        bias = None if bias is None else bias.to(wide(bias.dtype)).contiguous()
        if not self.int8:
            return Neurons(rows, None, bias)
        if not self.finite:
            raise ValueError("int8 cannot hold weights that are NaN or infinite; use_sparse_ffn(model, int8=False).")
        scale = rows.float().abs().amax(1) / 127
        steps = (rows.float() / scale.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)).round()
        return Neurons(steps.to(torch.int8), scale, bias)

    def __getstate__(self) -> dict[str, object]:
        """Without the copies: a pickled or copied model makes its own."""
        return {name: getattr(self, name) for name in ("linear", "transposed", "int8")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self.forget()
