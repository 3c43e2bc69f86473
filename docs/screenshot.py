"""A picture of the page of `reluformer space`, taken in headless Chromium, or a copy that shows its first text without
a script.

    reluformer space --model tatoeba-de-en --output build/page --example "$(cat diary.txt)"
    python -m docs.screenshot --page build/page --output docs/images/space.png
    python -m docs.screenshot --page build/page --output docs/static/demo.html

Needs Selenium, and Debian's packages chromium and chromium-driver; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from reluformer.commands.space import page_server

BROWSER, DRIVER = "chromium", "chromedriver"
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
_PATIENCE = 60  # seconds, on a machine with other work
SETTLED = """
const isDone = (part) => part.querySelector(".map table") && !part.querySelector(".pending");
const models = [...document.querySelectorAll(".model")];
return models.length && models.every(isDone);
"""
# What stands on the page now, with what was typed and chosen, and without what needs a script. page.css has its styles.
COPY = """
const copy = document.documentElement.cloneNode(true);
const values = [...document.querySelectorAll("textarea, select")];
copy.querySelectorAll("textarea, select").forEach((each, at) => {
  if (each.tagName === "TEXTAREA") each.textContent = values[at].value;
  for (const option of each.options ?? []) option.toggleAttribute("selected", option.value === values[at].value);
});
copy.querySelectorAll("textarea, select, input, button").forEach((each) => { each.disabled = true; });
copy.querySelector("header p").textContent = "A copy of the page for one text: it does not translate.";
copy.querySelectorAll("script, template, link[rel=icon], meta[http-equiv]").forEach((each) => each.remove());
return "<!doctype html>\\n" + copy.outerHTML;
"""


@contextmanager
def served(page: Path) -> Iterator[str]:
    """The address at which the files of a page are served while the block runs."""
    with page_server(page, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextmanager
def headless_chromium(*, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """A browser whose window has this size, for a reader who prefers light pages or dark ones."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which(BROWSER)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in _FLAGS:
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(shutil.which(DRIVER)))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        resize(browser, width, height)
        yield browser
    finally:
        browser.quit()


def resize(browser: webdriver.Chrome, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def wait_until(browser: webdriver.Chrome, script: str, patience: float = _PATIENCE) -> None:
    """Waits until JavaScript returns something true, at most so many seconds."""
    WebDriverWait(browser, patience).until(lambda _: browser.execute_script(script))


def static_copy(browser: webdriver.Chrome) -> str:
    """The page as it stands in the browser, as HTML beside which page.css must lie."""
    return browser.execute_script(COPY) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, required=True, help="folder that `reluformer space --output` has written")
    parser.add_argument("--dark", action="store_true", help="as a reader sees it who prefers dark pages")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--output", type=Path, required=True, help="PNG file, or HTML file for a copy")
    options = parser.parse_args(arguments)
    with served(options.page) as address, headless_chromium(width=options.width, dark=options.dark) as browser:
        browser.get(address)
        wait_until(browser, SETTLED)
        resize(browser, options.width, browser.execute_script("return document.documentElement.scrollHeight"))
        if options.output.suffix == ".html":
            options.output.write_text(static_copy(browser), encoding="utf-8")
        else:
            browser.save_screenshot(str(options.output))
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
