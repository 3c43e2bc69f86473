"""`python -m reluformer` is the command `reluformer`."""

import sys

from reluformer.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
