"""What communication costs on several GPUs, computed from assumptions that are named here; nothing of it was measured.

DDP adds up float32 gradients. In a ring each of N processes sends and receives 2 (N − 1) / N times their bytes. A bucket is sent
as soon as its gradients are complete, while the backward pass goes on with the layers below; those of the shared embedding are
complete at the very end, so that they cannot be hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_GRADIENT = 4  # float32, under bfloat16 autocast too
# A backward pass has two matrix products for each one of the forward pass.
BACKWARD_SHARE = 2 / 3
# Of what a maker states, this much is taken to be reached.
EFFICIENCY = 0.7
RING_SOURCE = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"
OVERLAP_SOURCE = "https://docs.pytorch.org/docs/stable/notes/ddp.html"


@dataclass(frozen=True)
class Link:
    """What joins processes.

    Args:
        name: of it.
        bytes_per_second: in one direction, as stated: of one GPU within a machine, of all adapters together between machines.
        source: where that is stated, in both directions together for NVLink and PCIe.
    """

    name: str
    bytes_per_second: float
    source: str


_H100 = "https://www.nvidia.com/en-us/data-center/h100/"
_A100 = "https://www.nvidia.com/en-us/data-center/a100/"
_DGX_H100 = "https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html"
_ETHERNET = "https://www.ieee802.org/3/"
WITHIN = (
    Link("NVLink 4 (H100, H200)", 900e9 / 2, _H100),
    Link("NVLink 3 (A100)", 600e9 / 2, _A100),
    Link("PCIe 4.0 × 16", 64e9 / 2, _A100),
)
BETWEEN = (
    Link("8 × InfiniBand NDR, 400 Gb/s", 8 * 400e9 / 8, _DGX_H100),
    Link("1 × InfiniBand NDR, 400 Gb/s", 400e9 / 8, _DGX_H100),
    Link("1 × Ethernet, 100 Gb/s", 100e9 / 8, _ETHERNET),
    Link("1 × Ethernet, 10 Gb/s", 10e9 / 8, _ETHERNET),
)


@dataclass(frozen=True)
class Gradients:
    """Of a model whose embedding is shared by encoder, decoder and output.

    Args:
        parameters: all of them.
        embedding: those of the shared embedding.
    """

    parameters: int
    embedding: int

    @property
    def bytes(self) -> int:
        return BYTES_PER_GRADIENT * self.parameters

    @property
    def last_bytes(self) -> int:
        """What is complete only when the backward pass is over."""
        return BYTES_PER_GRADIENT * self.embedding


@dataclass(frozen=True)
class System:
    """Machines × GPUs, and the link that the ring waits for: the slowest one it goes through."""

    machines: int
    gpus: int
    link: Link

    @property
    def processes(self) -> int:
        return self.machines * self.gpus

    def seconds(self, byte_count: float) -> float:
        """Of an all-reduce of so many bytes."""
        return ring_bytes(self.processes, byte_count) / (EFFICIENCY * self.link.bytes_per_second)


def ring_bytes(processes: int, byte_count: float) -> float:
    """What each process sends, and receives, in an all-reduce of `byte_count` bytes."""
    return 2 * (processes - 1) / processes * byte_count


def systems() -> list[System]:
    """8 GPUs, and 8 × 8 with the fastest link within a machine: the link between them is slower in every case."""
    return [System(1, 8, link) for link in WITHIN] + [
        System(8, 8, min(WITHIN[0], link, key=lambda one: one.bytes_per_second)) for link in BETWEEN
    ]


def exposed_seconds(system: System, gradients: Gradients, batch_seconds: float) -> float:
    """By how much communication makes an update longer.

    Args:
        system: of the processes.
        gradients: of the model.
        batch_seconds: forward and backward pass of one batch on one GPU; the last one's backward pass hides what it can.
    """
    early = system.seconds(gradients.bytes - gradients.last_bytes)
    return max(early - BACKWARD_SHARE * batch_seconds, 0.0) + system.seconds(gradients.last_bytes)


def hidden_from(system: System, gradients: Gradients) -> float:
    """Seconds of a batch from which all but the embedding's gradients are hidden."""
    return system.seconds(gradients.bytes - gradients.last_bytes) / BACKWARD_SHARE


def efficiency(system: System, gradients: Gradients, batch_seconds: float, accumulation: int = 1) -> float:
    """Share of the time that is computing: tokens a second of all GPUs over those of as many GPUs that send nothing."""
    computing = accumulation * batch_seconds
    return computing / (computing + exposed_seconds(system, gradients, batch_seconds))


def batch_seconds_for(system: System, gradients: Gradients, wanted: float, accumulation: int = 1) -> float:
    """The shortest batch with which `efficiency` is at least `wanted`; it grows with the length of a batch."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if efficiency(system, gradients, middle, accumulation) >= wanted else (middle, high)
    return high


def operations(gradients: Gradients, tokens: int) -> float:
    """Floating-point operations of forward and backward pass of a batch: 6 for each parameter and token.

    The shared embedding counts once, as the output projection. Attention's own products are left out: with sentences of some tens
    of tokens they are few.
    """
    return 6.0 * gradients.parameters * tokens
