"""`relu_attention` and what computes it: on a CPU the compiled loop, on CUDA the Triton kernels, elsewhere blocks in PyTorch."""

from . import operator
from .compiled.library import compiled_attention

operator.compiled_operator = compiled_attention
