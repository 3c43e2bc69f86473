"""One process of a group that processes.py has started with torchrun: it does updates when its turn comes, and rests between.

    torchrun --nproc_per_node 2 -m benchmarks.scaling.step two PORT '{"shapes": ["tiny"], "seed": 0, …}'

An update is `MICRO_BATCHES` batches, dealt out to the processes in turn, and AdamW; gradients are accumulated without
communication but for the last batch of each process, as the Trainer does it. Turns and what comes of them go through a
TCPStore of processes.py: a process that waits for its turn sleeps.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.speed.translation_models import INPUTS, OURS, SHAPES, batch_facts, build, padded_batch

MICRO_BATCHES = 4


class Updates:
    """A model of one shape and the four batches of its update.

    Args:
        shape: name in SHAPES.
        settings: inputs, tokens, attention_dropout and seed.
    """

    def __init__(self, shape: str, settings: dict[str, Any]) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        fields = SHAPES[shape]
        lengths, seed = INPUTS[settings["inputs"]], settings["seed"]
        batches = [
            padded_batch(lengths, fields["vocab_size"], settings["tokens_per_batch"], seed + number)
            for number in range(MICRO_BATCHES)
        ]
        self.facts = [batch_facts(batch) for batch in batches]
        self.targets = torch.tensor(sum(facts["target_tokens"] for facts in self.facts))
        self.batches = batches[self.rank :: self.world]
        self.model = build(OURS, fields, settings["attention_dropout"], seed)
        self.wrapped = DistributedDataParallel(self.model) if self.world > 1 else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def update(self, *, communicate: bool = True) -> None:
        """Without communication, the processes' gradients stay apart: what the rest of an update costs."""
        for number, batch in enumerate(self.batches, start=1):
            last = number == len(self.batches)
            alone = self.world == 1 or (last and communicate)
            with contextlib.nullcontext() if alone else self.wrapped.no_sync():
                loss = self.wrapped(**batch, num_items_in_batch=self.targets).loss
                (loss * self.world).backward()  # DDP takes the mean over the processes
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def time(self, repetitions: int, *, communicate: bool) -> float:
        """Seconds of an update, all processes together."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repetitions):
            self.update(communicate=communicate)
        dist.barrier()
        return (time.perf_counter() - start) / repetitions

    def communication(self) -> dict[str, Any]:
        """What DDP sends in an update, counted by a hook that is called with each bucket."""
        if self.world == 1:
            return {}
        buckets: list[dict[str, Any]] = []
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        counted = DistributedDataParallel(self.model)

        def hook(_, bucket):  # torch refuses annotations that are strings, as all are in this file
            tensor = bucket.buffer()
            parameters = [names[id(parameter)] for parameter in bucket.parameters()]
            buckets.append({"bytes": tensor.numel() * tensor.element_size(), "parameters": len(parameters)})
            buckets[-1]["last_parameter"] = parameters[-1]
            work = dist.all_reduce(tensor.div_(self.world), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        counted.register_comm_hook(None, hook)
        before, self.wrapped = self.wrapped, counted
        for _ in range(2):  # DDP orders its buckets by the first backward pass
            buckets.clear()
            self.update()
        self.wrapped = before
        return {"buckets": buckets, "bytes": sum(bucket["bytes"] for bucket in buckets)}

    def time_all_reduce(self, sizes: list[int], repetitions: int) -> float:
        """Seconds of the all-reduces alone, one for each bucket, when nothing else is computed."""
        tensors = [torch.zeros(size // 4) for size in sizes]
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repetitions):
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()
        return (time.perf_counter() - start) / repetitions


def serve(name: str, store: dist.TCPStore, settings: dict[str, Any]) -> None:
    """Does what the store says, turn by turn, until it says `end`."""
    made: dict[str, Updates] = {}
    number = 0
    while True:
        turn = json.loads(store.get(f"{name}/{number}"))
        if turn["do"] == "end":
            return
        updates = made.get(turn["shape"])
        if updates is None:
            made.clear()
            updates = made[turn["shape"]] = Updates(turn["shape"], settings)
        if turn["do"] == "describe":
            facts = {"batches": updates.facts, "parameters": updates.model.num_parameters()}
            answer: Any = {**facts, **updates.communication()}
        elif turn["do"] == "all_reduce":
            answer = updates.time_all_reduce(turn["sizes"], turn["repetitions"])
        else:
            answer = updates.time(turn["repetitions"], communicate=turn["do"] == "update")
        if updates.rank == 0:
            store.set(f"{name}/{number}/done", json.dumps(answer))
        number += 1


def main() -> int:
    name, port, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    wait = datetime.timedelta(seconds=settings["patience"])
    serve(name, dist.TCPStore("127.0.0.1", port, is_master=False, timeout=wait), settings)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
