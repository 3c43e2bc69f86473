"""The floor: the matrix products of attention in blocks of queries, and nothing else.

Two products forward (scores, output), five backward with recomputed scores (scores, gradient of the weights, and those of
query, key and value). One worker thread a core, each with heads of its own and a single thread of torch's: letting a small
product use all cores costs more than it gains. No scale, no activation, no sum over blocks: an implementation of this kind
cannot be faster. There are two floors: with oneDNN's product, and with `torch.mm` into tiles that are
there already (`addmm` for the sums over blocks); on some processors they differ much.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.contenders import AttentionCase, AttentionInputs

FLOOR, FLOOR_MM = "products only", "products only, torch.mm"


def block_size(keys: int, bytes_per_score: int) -> int:
    """Queries in a block: 2 MiB of scores, which stay in the cache of most processors, of 16 to 512 queries."""
    return min(512, max(16, 2**21 // (bytes_per_score * max(1, keys))))


def product(first: Tensor, second: Tensor) -> Tensor:
    """(m, k) and (n, k) → first @ second.T by oneDNN, which on some processors is twice as fast as `torch.mm` in float32."""
    return torch.ops.mkldnn._linear_pointwise.default(first, second, None, "none", [], "")


class MatrixProducts:
    """A pool of worker threads; torch's number of threads is as before for everybody else, also while it is open.

    Args:
        workers: threads.
        block_size: queries in a block, of the number of keys and the bytes of a score; default: 2 MiB of scores.
    """

    def __init__(self, workers: int, block_size: Callable[[int, int], int] = block_size) -> None:
        self.workers, self.block_size = workers, block_size
        before = torch.get_num_threads()
        # A pool starts threads as it needs them; the barrier makes it start all of them here, before the number is set back.
        all_started = threading.Barrier(workers)
        self._pool = ThreadPoolExecutor(workers, initializer=_use_one_thread, initargs=(all_started,))
        list(self._pool.map(int, range(workers)))
        torch.set_num_threads(before)

    def __enter__(self) -> MatrixProducts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def steps(self, case: AttentionCase, inputs: AttentionInputs) -> dict[str, Callable[[], Any]]:
        """Both floors: the products of one forward, or forward and backward, of this case; their results are thrown away."""
        return {FLOOR: self._step(case, inputs, _Products), FLOOR_MM: self._step(case, inputs, _ProductsInPlace)}

    def _step(self, case: AttentionCase, inputs: AttentionInputs, kind: type[_Products]) -> Callable[[], Any]:
        with torch.no_grad():
            heads = [
                tensor.detach().flatten(0, 1)
                for tensor in (inputs.query, inputs.key, inputs.value, inputs.output_gradient)
            ]
        rows = min(self.block_size(case.length, inputs.query.dtype.itemsize), case.length)
        blocks = [
            (slice(start, min(start + rows, case.length)), slice(0, min(start + rows, case.length)))
            for start in range(0, case.length, rows)
        ]
        if not case.causal:
            blocks = [(queries, slice(0, case.length)) for queries, _ in blocks]
        count = case.batch * case.heads

        def work(worker: int) -> None:
            with torch.no_grad():
                products = computed[worker]
                for head in range(worker, count, self.workers):
                    of_head = [tensor[head] for tensor in heads]
                    products.forward(*of_head, blocks)
                    if case.backward:
                        products.backward(*of_head, blocks)

        computed = [kind(heads[0], rows) for _ in range(self.workers)]
        return lambda: list(self._pool.map(work, range(self.workers)))


Blocks = list[tuple[slice, slice]]


class _Products:
    """With oneDNN's product; one head's queries, keys, values and output gradient are (length, head_dim)."""

    def __init__(self, like: Tensor, rows: int) -> None:
        """like: (heads, length, head_dim), what the heads are views of. rows: queries in the largest block."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, gradient: Tensor, blocks: Blocks) -> None:
        for queries, keys in blocks:
            scores = product(query[queries], key[keys])
            product(scores, value[keys].t())

    def backward(self, query: Tensor, key: Tensor, value: Tensor, gradient: Tensor, blocks: Blocks) -> None:
        for queries, keys in blocks:
            scores = product(query[queries], key[keys])
            of_scores = product(gradient[queries], value[keys])
            product(of_scores, key[keys].t())
            product(query[queries].t(), of_scores.t())
            product(gradient[queries].t(), scores.t())


class _ProductsInPlace(_Products):
    """With `torch.mm(out=)`."""

    def __init__(self, like: Tensor, rows: int) -> None:
        _, length, features = like.shape
        self.tiles = like.new_empty(2, rows * length)
        self.results = like.new_empty(4, length, features)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, gradient: Tensor, blocks: Blocks) -> None:
        for queries, keys in blocks:
            scores = self._tile(0, queries, keys)
            torch.mm(query[queries], key[keys].t(), out=scores)
            torch.mm(scores, value[keys], out=self.results[0, queries])

    def backward(self, query: Tensor, key: Tensor, value: Tensor, gradient: Tensor, blocks: Blocks) -> None:
        _, of_query, of_key, of_value = self.results
        of_key.zero_()
        of_value.zero_()
        for queries, keys in blocks:
            scores, of_scores = self._tile(0, queries, keys), self._tile(1, queries, keys)
            torch.mm(query[queries], key[keys].t(), out=scores)
            torch.mm(gradient[queries], value[keys].t(), out=of_scores)
            torch.mm(of_scores, key[keys], out=of_query[queries])
            of_key[keys].addmm_(of_scores.t(), query[queries])
            of_value[keys].addmm_(scores.t(), gradient[queries])

    def _tile(self, number: int, queries: slice, keys: slice) -> Tensor:
        height, width = queries.stop - queries.start, keys.stop
        return self.tiles[number, : height * width].view(height, width)


def _use_one_thread(all_started: threading.Barrier) -> None:
    torch.get_num_threads()  # torch sets a new thread's number when it is first asked for it: ask, then change it
    torch.set_num_threads(1)
    all_started.wait()
