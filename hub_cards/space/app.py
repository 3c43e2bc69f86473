"""What the Hub runs: `python app.py` in a Space whose variables name one model or two (README.md)."""

from __future__ import annotations

import os
import sys
import threading

from reluformer.configuration.errors import UserError, one_line
from reluformer.hub_cards.space.observation import ObservedTranslator
from reluformer.hub_cards.space.page import build_page, launch_page


def main() -> int:
    """Serves the models of the environment variables MODEL and SECOND_MODEL until the process ends."""
    names = [name for name in map(os.environ.get, ("MODEL", "SECOND_MODEL")) if name]
    try:
        if not names:
            raise UserError("MODEL: not set; name a model of the Hub in the variables of the Space")
        page = build_page([ObservedTranslator.from_pretrained(name) for name in names], _examples())
        launch_page(page, host=None)
    except UserError as error:
        print(f"app.py: error: {one_line(error)}", file=sys.stderr)
        return 2
    threading.Event().wait()
    return 0


def _examples() -> list[str]:
    """The lines of the environment variable EXAMPLES."""
    return [line.strip() for line in os.environ.get("EXAMPLES", "").splitlines() if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
