"""The page in Debian's Chromium, driven by selenium; without them, these tests are skipped.

UMBEL_PAGE_SHOTS names a folder for pictures.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest

WAIT = 15  # seconds
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--disable-dev-shm-usage --no-default-browser-check --disable-extensions"
)
BINARIES = ("chromium", "chromedriver")


@attrs.define(eq=False)
class Page:
    """The page, and what a person does with it."""

    driver: Any
    url: str
    logs: list[str] = attrs.field(factory=list)  # what the browser has complained of
    urls: set[str] = attrs.field(factory=set)  # that were asked for

    @property
    def keyboard(self) -> Any:
        """Its keys, such as ENTER."""
        from selenium.webdriver.common.keys import Keys

        return Keys

    def open(self) -> Page:
        self.driver.get(self.url)
        self.ready()
        return self

    def ready(self) -> None:
        self.until(lambda: self.js("return document.documentElement.dataset.ready"))
        self.until(lambda: self.value("#model"))

    def js(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def module(self, script: str, *args: Any) -> Any:
        """What an async function gives; `load(name)` imports a module of the page."""
        code = (
            "const done = arguments[arguments.length - 1];"
            "const load = (name) => import(new URL('/page/' + name, location.href));"
            f"(async (...args) => {{ {script} }})(...arguments)"
            ".then((value) => done({ value }))"
            ".catch((error) => done({ error: String(error.stack) }));"
        )
        told = self.driver.execute_async_script(code, *args)
        assert "error" not in told, told["error"]
        return told["value"]

    def until(self, done: Callable[[], Any], seconds: float = WAIT) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, 0.03).until(lambda _: done())

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.until(lambda: self.all(selector))[-1]

    def text(self, selector: str) -> str:
        """Of the last one, shown or not."""
        code = "return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? ''"
        return str(self.js(code, selector))

    def value(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0]).value", selector))

    def click(self, selector: str) -> None:
        # by script: what shows itself under a pointer has none here
        self.js("arguments[0].focus(); arguments[0].click()", self.one(selector))

    def keys(self, selector: str, *keys: str) -> None:
        self.one(selector).send_keys(*keys)

    def send(self, text: str) -> None:
        """Types it and presses Enter."""
        before, key = len(self.all(".answer")), self.keyboard
        self.keys("#input", text.replace("\n", key.SHIFT + key.ENTER + key.NULL), key.ENTER)
        self.until(lambda: len(self.all(".answer")) > before)

    def whole(self) -> str:
        """The last answer, when nothing is being written any more."""
        self.until(lambda: self.all(".answer") and not self.all(".growing"))
        return self.text(".answer .prose")

    def ask(self, text: str) -> str:
        self.send(text)
        return self.whole()

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        told = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", told)
        touch = {"enabled": phone, "maxTouchPoints": 1}
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", touch)

    def prefer(self, **features: str) -> None:
        """What the system is said to prefer, as prefers_color_scheme="dark"."""
        told = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})

    def collect(self) -> None:
        for entry in self.driver.get_log("browser"):
            # an error's status is told by the page, and by the browser as well
            if entry["source"] != "network" or "/page/" in entry["message"]:
                self.logs.append(entry["message"])
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.urls.add(message["params"]["request"]["url"])

    def check(self) -> None:
        """Nothing was complained of, and nobody else was asked."""
        self.collect()
        assert not self.logs
        here = urlsplit(self.url).netloc
        hosts = {urlsplit(u).netloc for u in self.urls if u.startswith(("http", "ws", "//"))}
        assert hosts <= {here}, hosts


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Chromium for all tests: each has a port, and so a storage, of its own."""
    webdriver = pytest.importorskip("selenium.webdriver")
    paths = {name: shutil.which(name) for name in BINARIES}
    if missing := [name for name, path in paths.items() if path is None]:
        pytest.skip(f"not here: {', '.join(missing)} (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = paths["chromium"]
    profile = tmp_path_factory.mktemp("chromium")
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}", "--window-size=1280,800"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(paths["chromedriver"])
    driver = webdriver.Chrome(options, service)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def page(driver: Any, page_server: Any) -> Iterator[Page]:
    """The page, open on a desk; in the end nothing may have gone wrong beside what it told."""
    made = Page(driver, page_server.url)
    made.size(1280, 800)
    made.prefer(prefers_color_scheme="light")
    driver.get("about:blank")
    made.collect()
    made.logs.clear()
    made.urls.clear()
    made.open()
    yield made
    made.check()
    made.js("window.onbeforeunload = null; localStorage.clear(); sessionStorage.clear()")
    driver.get("about:blank")


@pytest.fixture
def shots(page: Page) -> Callable[[str], None]:
    """Keeps a picture where UMBEL_PAGE_SHOTS names a folder."""
    folder = os.environ.get("UMBEL_PAGE_SHOTS")

    def shot(name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.driver.save_screenshot(str(Path(folder) / f"{name}.png"))

    return shot
