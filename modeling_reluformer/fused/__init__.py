"""`relu_attention` and what computes it: on a CPU the compiled loop, on CUDA the Triton kernels, elsewhere blocks in PyTorch."""

from . import operator
from .compiled.loop import compiled_attention

operator.find_compiled = compiled_attention
