"""Settings of the documentation: `make docs` writes docs/_build/html, and a warning is an error.

The source folder is the repository; `PAGES` are its pages, and the first one begins with README.md. A link from one
page to another works in the built pages as it does where the repository is browsed. A link that leads nowhere fails the
build. Formulas become MathML when the pages are built, and nothing is loaded from the network when they are read.
"""

import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "sphinx_extensions"))

project = "reluformer"
copyright = "the authors of reluformer"
release = version = installed_version("reluformer")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "markdown_docstrings"]

# Only these are pages; naming all else keeps Sphinx from walking through corpora, runs and environments.
PAGES = {"benchmarks", "docs", "CONTRIBUTING.md", "SECURITY.md"}
exclude_patterns = [entry.name for entry in ROOT.iterdir() if entry.name not in PAGES]
exclude_patterns += ["docs/_build", "benchmarks/results", "**/__pycache__"]
root_doc = "docs/index"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
myst_dmath_double_inline = True
# `$` is for formulas alone: an amount or a shell variable in a sentence is none.
myst_dmath_allow_digits = False
myst_dmath_allow_space = False

html_theme = "furo"
html_title = f"reluformer {release}"
html_math_renderer = "mathml"
html_static_path = ["static", "../hub_cards/static/page.css"]  # the styles of static/demo.html
html_css_files = ["site.css"]
html_extra_path = ["top"]  # an index.html that leads to docs/index.html, the start page
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"

smartquotes = False
default_role = "code"  # docstrings are Markdown: one pair of backticks is code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_use_ivar = False


def _with_readme(app, page: str, source: list[str]) -> None:
    """Puts README.md into the first page, so that no text stands twice; from that page's folder its links must lead."""
    if (mark := "<!-- README.md -->") in source[0]:
        source[0] = source[0].replace(mark, _from_docs((ROOT / "README.md").read_text(encoding="utf-8")))


def _from_docs(readme: str) -> str:
    """The text with links that lead from docs/ to what they lead to from the root. Blocks of code stay as they are."""
    parts = re.split(r"(^```.*?^```$)", readme, flags=re.DOTALL | re.MULTILINE)  # every second part is code
    link = re.compile(r"(?<=\]\()(?!https?:|#)")
    return "".join(part if at % 2 else link.sub("../", part) for at, part in enumerate(parts))


def setup(app) -> None:
    app.connect("source-read", _with_readme)
