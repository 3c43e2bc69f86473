"""Formulas as MathML, which browsers draw by themselves: no script, no font and no request when a page is read.

Why this is not a library's: Sphinx's own renderers need a script (mathjax, from the network unless a copy is kept here)
or an installation of LaTeX (imgmath). MyST only finds the formulas; latex2mathml converts them; this extension joins
the two.
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula within a sentence."""
    translator.body.append(_mathml(node.astext(), display="inline"))
    raise nodes.SkipNode


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on a line of its own, wider ones with a scroll bar; its number, if it has one, as plain text beside
    it."""
    number = f" ({node['number']})" if node.get("number") else ""
    style = ' style="overflow-x: auto; margin: 1em 0"'
    translator.body.append(f"<div class='math'{style}>{_mathml(node.astext(), display='block')}{number}</div>\n")
    raise nodes.SkipNode


def _mathml(latex: str, *, display: str) -> str:
    try:
        found = convert(latex, display=display)
    except Exception as error:  # the converter has a class of its own for every fault, without a common one
        raise ExtensionError(f"mathml: {latex!r} is no formula that latex2mathml reads: {error!r}") from error
    # What it does not know, it writes down as text in the middle of the formula.
    if "\\" in found:
        raise ExtensionError(f"mathml: latex2mathml left a command of {latex!r} as it is: {found}")
    # Browsers put no space between an identifier and what follows: "log n" would read as one word.
    found = re.sub(r"<mi>(log|max|exp)</mi>", r'<mo lspace="0.1667em" rspace="0.1667em">\1</mo>', found)
    return found.replace("<math ", f'<math alttext="{html.escape(latex, quote=True)}" ', 1)


def setup(app: Sphinx) -> dict[str, Any]:
    """Names the renderer, for `html_math_renderer`."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
