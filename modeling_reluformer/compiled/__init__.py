"""The loop over blocks as a compiled extension, which a repository on the Hub does not carry."""

from ..attention_operator import CpuLoop, register_cpu_loop
from .loop import compiled_backward, compiled_forward, serves


def register_compiled_loop() -> None:
    """From now on, the extension computes attention on a CPU where it can."""
    register_cpu_loop(CpuLoop(serves, compiled_forward, compiled_backward))
