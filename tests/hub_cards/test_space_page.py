"""The page in a browser: it translates, draws, changes with what is chosen, and asks nobody but this machine."""

import json
import shutil
from importlib import import_module
from urllib.parse import urlsplit

import pytest

from reluformer.hub_cards.space.observation import ObservedTranslator
from reluformer.training.translation import Translator

from ..analysis.small_models import HEADS, LAYERS, make_model, make_tokenizer

pytest.importorskip("gradio", reason="the page needs the optional package gradio")
pytest.importorskip("selenium", reason="the browser is driven by the optional package selenium")
for program in ("chromium", "chromedriver"):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (Debian: chromium, chromium-driver)", allow_module_level=True)
page_module = import_module("reluformer.hub_cards.space.page")
shots = import_module("docs.screenshot")
By, Keys = shots.By, shots.Keys

TEXT = "ein hund im schnee"
pytestmark = pytest.mark.slow


class Counted(ObservedTranslator):
    """Counts the texts it was asked for."""

    calls = 0

    def __call__(self, text):
        self.calls += 1
        return super().__call__(text)


@pytest.fixture(scope="module")
def models() -> list[Counted]:
    tokenizer = make_tokenizer()

    def make(kind: str) -> Counted:
        translator = Translator(make_model(kind, len(tokenizer)), tokenizer, num_beams=1, max_new_tokens=6)
        return Counted(translator, f"small-{kind}")

    return [make("reluformer"), make("vanilla")]


@pytest.fixture(scope="module")
def browser():
    with shots.headless_chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser):
    """Opens the page of some models; at the end nothing may have gone wrong in the browser or left this machine."""
    pages = []

    def open_for(models, **options):
        pages.append(page_module.build_page(models, **options))
        shots.open_page(browser, page_module.launch_page(pages[-1]))
        return browser

    yield open_for
    for page in pages:
        page.close(verbose=False)
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
    hosts = {
        urlsplit(url).hostname for url in requests(browser) if urlsplit(url).scheme not in ("chrome", "data", "blob")
    }
    assert hosts == {"127.0.0.1"}


def requests(browser) -> list[str]:
    """The addresses of all requests since the last look, those of web sockets too."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    found = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return found + [m["params"]["url"] for m in messages if m["method"] == "Network.webSocketCreated"]


def map_of(view) -> str:
    image = view.find_element(By.CSS_SELECTOR, "img.map")
    assert image.get_property("naturalWidth") > 0
    return image.get_attribute("src")


def chosen(view) -> tuple[str, ...]:
    button = view.find_element(By.CSS_SELECTOR, "table.zeros button[aria-pressed=true]")
    return tuple(button.get_attribute(f"data-{name}") for name in ("module", "layer", "head"))


def test_one_model(visit, models, tmp_path):
    model = models[0]
    browser = visit([model], examples=[TEXT, "zwei hunde"])
    assert browser.find_element(By.CSS_SELECTOR, "#text textarea").get_property("value") == TEXT
    (view,) = shots.views(browser)
    assert view.find_element(By.CLASS_NAME, "translation").text.strip() == model.translator(TEXT).strip()
    opened = chosen(view)
    assert opened[0] == "cross" and opened[2] != "all", "the page opens on a translation, and on one head of it"
    shots.choose(browser, "head", "mean of all")
    (view,) = shots.views(browser)
    assert len(view.find_elements(By.CSS_SELECTOR, "table.zeros button")) == 3 * LAYERS * (HEADS + 1)
    mean, calls = map_of(view), model.calls

    shots.choose(browser, "head", "2")
    (view,) = shots.views(browser)
    second = map_of(view)
    assert second != mean and chosen(view) == ("cross", opened[1], "2")
    alt = view.find_element(By.CSS_SELECTOR, "img.map").get_attribute("alt")
    assert f"Cross-attention, layer {opened[1]} of 2, head 2 of 4" in alt

    # A head of the table, by keyboard: the radio buttons follow, and the focus stays.
    before = shots.contents(browser)
    place = '[data-module="decoder_self"][data-layer="2"][data-head="3"]'
    view.find_element(By.CSS_SELECTOR, f"table.zeros {place}").send_keys(Keys.ENTER)
    shots.wait_for_views(browser, before)
    (view,) = shots.views(browser)
    assert chosen(view) == ("decoder_self", "2", "3") and map_of(view) != second
    ticked = [
        radio.get_property("value") for radio in browser.find_elements(By.CSS_SELECTOR, "input[type=radio]:checked")
    ]
    assert ticked == ["decoder_self", "2", "3"]
    assert browser.switch_to.active_element.get_attribute("aria-pressed") == "true"
    assert model.calls == calls, "choosing a map translated the text again"

    shots.save_screenshot(browser, tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
