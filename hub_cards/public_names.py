"""Names for a card: what is on the Hub by its id, what is on this machine without its path."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from reluformer.training.run.redaction import last_part

_CHECKPOINT = re.compile(r"checkpoint-\d+")


def has_form_of_id(name: str) -> bool:
    """Whether it has the form of an id on the Hub."""
    if name.startswith((".", "/", "~")):
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def is_hub_id(name: str) -> bool:
    """Whether a recipe's path or id can only be meant as an id: it is one in form, and no folder here is called so."""
    return has_form_of_id(name) and not name.startswith("runs/") and not Path(name).exists()


def public_name(name: str) -> str:
    """An id as it is; of a path or URL, its last part."""
    return name if is_hub_id(name) else last_part(name)


def run_name(path: str) -> str | None:
    """The run that a path to a run folder or one of its checkpoints is of; None for any other folder."""
    parts = _parts(path)
    if len(parts) > 1 and _CHECKPOINT.fullmatch(parts[-1]):
        parts, path = parts[:-1], str(Path(path).parent)
    return parts[-1] if "runs" in parts[:-1] or (Path(path) / "recipe.yaml").is_file() else None


def _parts(path: str) -> list[str]:
    return [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..", "~")] or ["…"]
