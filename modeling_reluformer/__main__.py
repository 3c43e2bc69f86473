"""`python -m reluformer` is the command `reluformer`."""

import sys

from reluformer.training.cli import main

if __name__ == "__main__":
    sys.exit(main())
