"""The pages build without a warning, load nothing from the network, and a link that leads nowhere stops the build."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from .pages import ROOT

for extra in ("sphinx", "myst_parser", "furo", "latex2mathml"):
    pytest.importorskip(extra, reason="the pages are built with the extra `docs`: pip install '.[docs]'")

CONFIGURATION = ROOT / "docs"
pytestmark = pytest.mark.slow


def build(source: Path, configuration: Path, target: Path) -> subprocess.CompletedProcess:
    """What `make docs` runs."""
    options = ["-q", "-b", "html", "-c", str(configuration), "-d", str(target / "doctrees"), "-W", "--keep-going"]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(target / "html")]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=source)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = build(ROOT, CONFIGURATION, folder)
    assert result.returncode == 0, result.stderr
    return folder / "html"


class Page(HTMLParser):
    """What a page loads, where it leads, what can be led to, and its formulas."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads, self.links, self.anchors, self.formulas = [], [], {""}, 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.formulas += tag == "math"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link":
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def is_external(address: str) -> bool:
    return bool(urlsplit(address).scheme or urlsplit(address).netloc) and not address.startswith("data:")


def test_every_page_is_built(site):
    expected = {
        path.relative_to(ROOT).with_suffix(".html") for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md"))
    }
    assert {page for page in expected if not (site / page).is_file()} == set()


def test_the_start_page_is_the_readme(site):
    """All of it, with links and pictures that lead from where the page stands."""
    start = (site / "docs" / "index.html").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", readme, re.MULTILINE)
    assert headings and [heading for heading in headings if f"<h2>{heading}<" not in start] == []
    targets = re.findall(r"/blob/main/([\w/]+)\.md\)", readme)
    missing = [target for target in targets if f'href="{os.path.relpath(target, "docs")}.html"' not in start]
    assert len(targets) > 15 and missing == []
    assert 'src="../_images/attention.png"' in start.partition("<h2>")[0], "the first page begins with a picture"


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off(site, width):
    """No page is wider than its window, and no code than its box, on a screen and on a telephone."""
    pytest.importorskip("selenium", reason="the browser is driven by the optional package selenium")
    pytest.importorskip("gradio", reason="docs.screenshot, which starts the browser, needs the optional package gradio")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium or chromedriver is not installed (Debian: chromium, chromium-driver)")
    from docs.screenshot import headless_chromium

    boxes = "[document.documentElement, ...document.querySelectorAll('pre')]"
    wide = f"return {boxes}.filter(box => box.scrollWidth > box.clientWidth + 1).length"
    with headless_chromium() as browser:
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        found = {}
        for page in sorted((site / "docs").glob("*.html")):
            browser.get(page.as_uri())
            found[page.name] = browser.execute_script(wide)
    assert len(found) > 15 and {page: count for page, count in found.items() if count} == {}


def test_the_top_leads_to_the_start_page(site, pages):
    assert pages[site / "index.html"].links == ["docs/index.html"]


def test_nothing_is_loaded_from_the_network(site, pages):
    assert {(path.name, each) for path, page in pages.items() for each in page.loads if is_external(each)} == set()
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"""(url\(\s*['"]?|@import\s+['"]?)(https?:)?//""", text), sheet
    for script in site.rglob("*.js"):
        assert not re.search(
            r"""(import|fetch|importScripts)\(?\s*['"]https?://""", script.read_text(encoding="utf-8")
        ), script


def test_every_link_leads_to_a_page_and_a_place_in_it(site, pages):
    """Sphinx has checked those that authors wrote; this sees what came out, the included README.md and benchmarks/*.md too."""
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if is_external(link):
                continue
            address = urlsplit(link)
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            has_place = target not in pages or unquote(address.fragment) in pages[target].anchors
            if not target.exists() or not has_place:
                broken.append((path.name, link))
    assert broken == []


def test_no_link_leads_into_a_folder_of_some_machine(pages):
    assert not [link for page in pages.values() for link in page.links if link.startswith(("file:", "/"))]


def test_formulas_are_drawn_by_the_browser(site, pages):
    assert pages[site / "docs" / "formula.html"].formulas > 30
    for path in (site / "docs").glob("*.html"):
        body = re.sub(r"<(code|pre)\b.*?</\1>|<math .*?</math>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "$$" not in body, path
        assert not re.search(r"\\(frac|sqrt|sum|gamma|log)\b", body), path


def test_faults_stop_the_build(tmp_path):
    docs = tmp_path / "docs"
    shutil.copytree(
        CONFIGURATION / "sphinx_extensions", docs / "sphinx_extensions", ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in ("top", "static"):
        shutil.copytree(CONFIGURATION / folder, docs / folder)
    shutil.copy(CONFIGURATION / "conf.py", docs)
    docs.joinpath("index.md").write_text(
        "# Start\n\n[page](no_such_page.md) [place](other.md#no-such-place) [file](../no_such_file.py) [good](other.md#there)\n\n"
        "```{toctree}\nother\n```\n"
    )
    docs.joinpath("other.md").write_text("# Other\n\n## There\n")
    docs.joinpath("lost.md").write_text("# Lost\n\nIn no toctree.\n")
    result = build(tmp_path, docs, tmp_path / "out")
    assert result.returncode != 0
    for fault in ("no_such_page.md", "no-such-place", "no_such_file.py", "lost.md"):
        assert fault in result.stderr
    assert "#there" not in result.stderr


def test_a_formula_that_cannot_be_drawn_stops_the_build(site, monkeypatch):
    monkeypatch.syspath_prepend(CONFIGURATION / "sphinx_extensions")
    import mathml
    from sphinx.errors import ExtensionError

    drawn = mathml._mathml(r"\frac{a}{\log b}", display="block")
    assert drawn.startswith("<math ") and "<mfrac>" in drawn
    assert 'rspace="0.1667em">log</mo>' in drawn
    for wrong in (r"\nosuchcommand x", r"\frac", r"x^2^3"):
        with pytest.raises(ExtensionError, match="mathml"):
            mathml._mathml(wrong, display="inline")


def test_docstrings_are_markdown(monkeypatch):
    monkeypatch.syspath_prepend(CONFIGURATION / "sphinx_extensions")
    from markdown_docstrings import convert

    assert convert(["|log S_i| of *args, `a|b_`, *all* and [`Name`] of trailing_ ones"]) == [
        r"\|log S_i\| of \*args, `a|b_`, *all* and `Name` of trailing\_ ones"
    ]
    assert convert(["Example:", "", "```python", ">>> a = 1", "```"]) == [
        *("Example:", "", ".. code-block:: python", "", "   >>> a = 1", ""),
    ]
    assert convert(["The sum:", "", "    a_ = |b|", "    c", "", "Args:", "    x: one,", "        long."]) == [
        *("The sum:", "", "::", "", "    a_ = |b|", "    c", "", "Args:", "    x: one,", "        long."),
    ]
    assert convert(["Fields.", "", "a: the first, which", "    goes on. b: the second."]) == [
        *("Fields.", "", "a: the first, which goes on. b: the second."),
    ]
