"""Names for a card: what is on the Hub by its id, what is on this machine without its path."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

_CHECKPOINT = re.compile(r"checkpoint-\d+")
_TOKEN = re.compile(r"\bhf_\w{8,}")


def is_hub_id(name: str) -> bool:
    """Whether a recipe's path or id can only be meant as an id: it is one in form, and no folder here is called so."""
    if name.startswith((".", "/", "~", "runs/")) or Path(name).exists():
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def public_name(name: str) -> str:
    """An id as it is; of a path, its last part."""
    return name if is_hub_id(name) else _parts(name)[-1]


def run_name(path: str) -> str | None:
    """The run that a path to a run folder or one of its checkpoints is of; None for any other folder."""
    parts = _parts(path)
    if len(parts) > 1 and _CHECKPOINT.fullmatch(parts[-1]):
        parts, path = parts[:-1], str(Path(path).parent)
    return parts[-1] if "runs" in parts[:-1] or (Path(path) / "recipe.yaml").is_file() else None


def public_command(command: str) -> str:
    """A command line in which … stands for tokens of the Hub, and for the folders of paths that are absolute or lead out of
    the current folder."""
    try:
        words = shlex.split(_TOKEN.sub("…", command))
    except ValueError:  # an unclosed quote: no command of ours, and no words to look at
        return "…"
    return " ".join(_public_word(word) for word in words)


def _public_word(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if re.match(r"[/\\~]|[A-Za-z]:[/\\]", value) or ".." in re.split(r"[/\\]", value):
        return f"{option}{equals}…/{shlex.quote(_parts(value)[-1])}"
    return word if word == "…" else shlex.quote(word)


def _parts(path: str) -> list[str]:
    return [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..", "~")] or ["…"]
