"""`python -m reluformer.modeling_reluformer.fused.compiled` builds the compiled attention ahead and prints where it is."""

import sys

from .building import CompiledAttentionError
from .library import library, location


def main() -> int:
    """Exit status: 0, or 1 where there is none; a warning has said why, unless RELUFORMER_COMPILED=0 does."""
    try:
        found = library(large=True)
    except CompiledAttentionError as error:
        print(error, file=sys.stderr)
        return 1
    print("no compiled attention: the Python loop computes" if found is None else f"compiled attention: {location()}")
    return int(found is None)


if __name__ == "__main__":
    sys.exit(main())
