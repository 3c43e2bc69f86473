"""`python -m reluformer.modeling_reluformer.compiled` builds the compiled library ahead and prints where it is."""

import sys

from . import library

operators = library.library(large=True)  # a warning says why there is none
print(
    "no compiled library: the Python loop computes" if operators is None else f"compiled library: {library.loaded_from}"
)
sys.exit(operators is None)
