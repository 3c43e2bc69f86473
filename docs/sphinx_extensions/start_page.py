"""An index.html at the top of the built pages: the start page is docs/index.html, as the repository has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>{title}</title>
<meta http-equiv="refresh" content="0; url={target}">
<a href="{target}">{title}</a>
"""


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        page = _REDIRECT.format(title=app.config.html_title, target=app.builder.get_target_uri(app.config.root_doc))
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Writes the page when all others are written."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
