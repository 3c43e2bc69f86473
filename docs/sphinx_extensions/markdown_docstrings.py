"""Docstrings of this project are Markdown in Google's style, but autodoc reads reStructuredText.

Why this is not a library's: MyST turns pages into nodes, but not what autodoc finds; sphinx-autodoc2 does, but knows no
sections like `Args:`. Napoleon reads these sections. This extension converts the rest: fenced and indented code,
references of Transformers (`[`Name`]`), and characters that reStructuredText would take for markup.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
# Code, and words set in italics or bold: these mean the same in both.
_KEPT = re.compile(r"(``?[^`]+``?|(?<![\w*])\*{1,2}[\w ]+\*{1,2}(?![\w*]))")
_MARKUP = re.compile(r"([*|\\])|(?<=\w)(_)(?!\w)")
# `Args:` and its like, below which Napoleon wants an indented block.
_SECTION = re.compile(r"^[A-Z][a-z]+( [A-Z]?[a-z]+)*:$")


def convert(lines: list[str]) -> list[str]:
    """The lines of a docstring, Markdown → reStructuredText."""
    found: list[str] = []
    fence: str | None = None
    lines = _without_hanging_indents(lines)
    for index, line in enumerate(lines):
        match = _FENCE.match(line)
        if match:
            fence = match[1] if fence is None else None
            found += [f"{match[1]}.. code-block:: {match[2] or 'text'}", ""] if fence is not None else [""]
        elif fence is not None:
            found.append(f"   {line}" if line else line)
        elif _begins_indented_code(lines, index):
            found += ["::", "", line]
        elif _is_indented_code(lines, index):
            found.append(line)
        else:
            found.append(escape(line))
    return found


def escape(line: str) -> str:
    """A line of prose: markup outside code spans made literal, references made code."""
    line = re.sub(r"\[(`[^`]+`)\]", r"\1", line)
    parts = _KEPT.split(line)  # every second part is one that matched
    return "".join(part if index % 2 else _MARKUP.sub(r"\\\1\2", part) for index, part in enumerate(parts))


def _without_hanging_indents(lines: list[str]) -> list[str]:
    """Prose at the margin whose second line is indented (`name: …`), as one line each."""
    found: list[str] = []
    for line in lines:
        above = found[-1] if found else ""
        hangs = (
            line.startswith(" ") and above and not above.startswith((" ", "```", ">>>")) and not _SECTION.match(above)
        )
        found[len(found) - 1 if hangs else len(found) :] = [f"{above} {line.lstrip()}" if hangs else line]
    return found


def _is_indented_code(lines: list[str], index: int) -> bool:
    """A line of a block that is indented by four or more behind an empty line and prose at the margin."""
    if not lines[index].startswith("    "):
        return False
    above = index
    while above >= 0 and (not lines[above] or lines[above].startswith("    ")):
        above -= 1
    return above >= 0 and above + 1 < index + 1 and not lines[above + 1]


def _begins_indented_code(lines: list[str], index: int) -> bool:
    return _is_indented_code(lines, index) and not lines[index - 1] and not _is_indented_code(lines, index - 2)


def _on_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = convert(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Before Napoleon, which has the default priority of 500."""
    app.connect("autodoc-process-docstring", _on_docstring, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
