"""Pictures of the page for the documentation, taken in headless Chromium.

    python -m docs.screenshot --model runs/a --model runs/b --text "dreiundzwanzig" --output docs/images/space_two_models.png

Needs Gradio, Selenium, and Debian's packages chromium and chromium-driver; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from reluformer.configuration.errors import UserError
from reluformer.hub_cards.space.observation import ObservedTranslator
from reluformer.hub_cards.space.page import build_page, launch_page

BROWSER, DRIVER = "chromium", "chromedriver"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
_PATIENCE = 120  # seconds; on a machine with nothing else to do, a translation takes less than one


@contextmanager
def headless_chromium(*, width: int = 1400, height: int = 1000, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """A browser with an empty profile that writes down every request and every line of the console.

    Raises:
        UserError: the browser or its driver is not installed.
    """
    paths = {name: shutil.which(name) for name in (BROWSER, DRIVER)}
    if missing := [name for name, path in paths.items() if path is None]:
        raise UserError(f"{' and '.join(missing)}: not found; install Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = paths[BROWSER]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        dark_mode = ["--force-dark-mode"] if dark else []
        for flag in (*_FLAGS, *dark_mode, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(
            options=options, service=Service(paths[DRIVER])
        )  # a given path: nothing is looked for
        try:
            yield browser
        finally:
            browser.quit()


def open_page(browser: webdriver.Chrome, address: str) -> None:
    """Opens the page and waits until text can be typed and translated."""
    browser.get(address)
    for needed in ("#text textarea", "#translate"):
        WebDriverWait(browser, _PATIENCE).until(lambda _, needed=needed: browser.find_elements(By.CSS_SELECTOR, needed))


def translate(browser: webdriver.Chrome, text: str) -> None:
    """Types a text, translates it, and waits until every view shows something new."""
    before = contents(browser)
    field = browser.find_element(By.CSS_SELECTOR, "#text textarea")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.DELETE, text)
    browser.find_element(By.ID, "translate").click()
    wait_for_views(browser, before)


def choose(browser: webdriver.Chrome, group: str, name: str) -> None:
    """Chooses a radio button of `group` ("module", "layer" or "head") by its name, and waits for the views."""
    before = contents(browser)
    labels = browser.find_elements(By.CSS_SELECTOR, f"#{group} label")
    next(label for label in labels if label.text.strip() == name).click()
    wait_for_views(browser, before)


def views(browser: webdriver.Chrome) -> list[WebElement]:
    """What the page shows of each model."""
    return browser.find_elements(By.CLASS_NAME, "view")


def contents(browser: webdriver.Chrome) -> list[str]:
    """The HTML of each view."""
    return browser.execute_script("return [...document.getElementsByClassName('view')].map(view => view.innerHTML)")


def wait_for_views(browser: webdriver.Chrome, before: list[str]) -> None:
    """Waits until the `contents` of all views differ from `before`, and their pictures are there."""

    def is_done(_: object) -> bool:
        now = contents(browser)
        pictures = "return [...document.querySelectorAll('.view img')].every(image => image.complete && image.naturalWidth > 0)"
        changed = len(now) == len(before) and all(new != old for new, old in zip(now, before, strict=True))
        return changed and browser.execute_script(pictures)

    WebDriverWait(browser, _PATIENCE).until(is_done)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, help="folder; give two to show them side by side")
    parser.add_argument("--text", required=True)
    parser.add_argument("--module", help="name on the page, for example Cross; default: the page's")
    parser.add_argument("--layer", help="number; default: the page's")
    parser.add_argument("--head", help="number; default: the page's")
    parser.add_argument("--dark", action="store_true", help="as a reader sees it who prefers dark pages")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--output", type=Path, required=True, help="PNG file")
    options = parser.parse_args(arguments)
    page = build_page([ObservedTranslator.from_pretrained(model) for model in options.model])
    try:
        address = launch_page(page)
        with headless_chromium(width=options.width, dark=options.dark) as browser:
            open_page(browser, address)
            translate(browser, options.text)
            for group in ("module", "layer", "head"):
                if (name := getattr(options, group)) is not None:
                    choose(browser, group, name)
            save_screenshot(browser, options.output)
    finally:
        page.close(verbose=False)
    print(options.output)
    return 0


def save_screenshot(browser: webdriver.Chrome, path: Path) -> None:
    """The whole page, not only what the window shows, as a PNG."""
    browser.execute_script("document.activeElement.blur()")  # a text field's cursor blinks
    time.sleep(1)  # buttons fade from one colour into the other
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    whole = {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
    data = browser.execute_cdp_cmd("Page.captureScreenshot", whole)["data"]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB").save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
