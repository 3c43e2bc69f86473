"""The pages build without a warning, which a link that leads nowhere would be, and load nothing from the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT

for extra in ("sphinx", "myst_parser", "furo", "latex2mathml"):
    pytest.importorskip(extra, reason="the pages are built with the extra `docs`: pip install '.[docs]'")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """What `make docs` builds."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-b", "html", "-c", "docs", "-d", str(folder / "doctrees"), "-W", "--keep-going"]
    command = [sys.executable, "-m", "sphinx", *options, ".", str(folder / "html")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return folder / "html"


def test_every_page_is_built_and_the_first_is_the_readme(site):
    pages = (path.relative_to(ROOT) for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")))
    assert [page for page in pages if not (site / page.with_suffix(".html")).is_file()] == []
    start = (site / "docs" / "index.html").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings and [heading for heading in headings if f"<h2>{heading}<" not in start] == []
    assert 'src="../_images/at_a_glance.png"' in start.partition("<h2>")[0], "the first page begins with a picture"
    assert re.search(r'src="../_images/\w+\.png"', start.partition("<h2>")[0]), "the first page begins with a picture"


def test_the_first_page_has_the_pictures_tables_and_code_of_the_readme(site):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    start = (site / "docs" / "index.html").read_text(encoding="utf-8")
    for picture in re.findall(r"(?:\]\(|src=\")[^)\"]*/([\w-]+\.png)", readme):
        assert f'src="../_images/{picture}"' in start
    assert start.count("highlight-python") == readme.count("```python") >= 3
    assert start.count("<table") == len(re.findall(r"^\|[-:| ]+\|$", readme, re.MULTILINE))


def test_a_reader_can_search_and_choose_light_or_dark(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(") and '"docs/glossary"' in index and "entropi" in index
    for page in ("docs/index.html", "benchmarks/MODELS.html"):
        text = (site / page).read_text(encoding="utf-8")
        assert 'role="search"' in text and 'class="theme-toggle"' in text


def test_the_copy_of_the_browsers_page_has_the_styles_of_the_page(site):
    copy = (site / "_static" / "demo.html").read_text(encoding="utf-8")
    assert '<link rel="stylesheet" href="page.css">' in copy and "<script" not in copy
    assert (site / "_static" / "page.css").read_text() == (ROOT / "hub_cards/static/page.css").read_text()


def test_nothing_is_loaded_from_the_network(site):
    loads = re.compile(r"""(?:<link [^>]*href=|src=|url\(\s*|@import\s+)["']?(?:https?:)?//""")
    files = [path for end in ("html", "css") for path in site.rglob(f"*.{end}")]
    assert len(files) > 20
    assert [path for path in files if loads.search(path.read_text(encoding="utf-8"))] == []


def test_formulas_are_drawn_by_the_browser(site):
    assert (site / "docs" / "formula.html").read_text(encoding="utf-8").count("<math ") > 30
    for path in (site / "docs").glob("*.html"):
        body = re.sub(r"<(code|pre)\b.*?</\1>|<math .*?</math>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"\$\$|\\(frac|sqrt|sum|gamma|log)\b", body), path
