"""A process in which neither the package nor Triton can be imported: what remote code must do with."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

MISSING = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("reluformer", "triton", "entmax"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without_package(code: str, *arguments: str, folder: Path, **environment: str) -> Any:
    """What the code prints last, as JSON; it finds the arguments in `sys.argv`, and `json` and `sys` imported.

    Args:
        folder: where it works and has its home.
        environment: variables beside the few that it needs.
    """
    result = subprocess.run(
        [sys.executable, "-c", MISSING + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), **environment},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])
