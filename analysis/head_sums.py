"""Sums by module, layer and head that grow batch by batch, and their totals."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

ALL = "all"
# The order of tables and pictures: three kinds of attention, and feed-forward memories, which have one "head".
MODULES = ("encoder_self", "decoder_self", "cross", "encoder_ffn", "decoder_ffn")
Place = tuple[str, int | str, int | str]


class HeadSums:
    """A vector of float64 sums for each (module, layer, head); nothing else is kept."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], Tensor] = {}

    def add(self, module: str, layer: int, values: Tensor) -> None:
        """Adds `values` (heads, figures) to the sums of one layer, counted from 0."""
        values = values.double().cpu()
        known = self._sums.get((module, layer))
        self._sums[module, layer] = values if known is None else known + values

    def modules(self) -> list[str]:
        """The modules met so far, in the order of `MODULES`."""
        return sorted({module for module, _ in self._sums}, key=MODULES.index)

    def heads(self, module: str) -> int:
        """How many heads the layers of a module have."""
        return next(len(values) for (name, _), values in self._sums.items() if name == module)

    def total(self) -> Tensor:
        """The sums (figures,) over everything."""
        return sum(values.sum(dim=0) for values in self._sums.values())

    def groups(self) -> Iterator[tuple[Place, Tensor]]:
        """(module, layer, head) and sums (figures,): each head, each layer, each module; layers and heads from 1.

        `ALL` stands for a sum over heads or layers.
        """
        for module in self.modules():
            layers = sorted(layer for name, layer in self._sums if name == module)
            yield (module, ALL, ALL), sum(self._sums[module, layer].sum(dim=0) for layer in layers)
            for layer in layers:
                sums = self._sums[module, layer]
                yield (module, layer + 1, ALL), sums.sum(dim=0)
                for head, figures in enumerate(sums, start=1):
                    yield (module, layer + 1, head), figures
