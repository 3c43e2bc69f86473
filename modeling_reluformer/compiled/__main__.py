"""`python -m reluformer.modeling_reluformer.compiled` builds the compiled attention ahead and prints where it is."""

import sys

from . import library

found = library.library(large=True)  # a warning says why there is none
print(
    "no compiled attention: the Python loop computes" if found is None else f"compiled attention: {library.loaded_from}"
)
sys.exit(found is None)
