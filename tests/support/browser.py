"""
The system's Chromium for tests, driven by Playwright: open a page, and know what it asked for and
complained of.

    with chromium() as browser:
        page = open_page(browser, path.as_uri(), width=390, dark=True)
        assert page.title() == "..." and complaints(page) == [] and requested(page) == [...]
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnverify import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
else:  # tests that need no browser are collected without Playwright too
    Browser = Page = Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
REQUESTS_KEPT = 100
"""So many requests of a page Playwright remembers."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium for as long as the block lasts; FileNotFoundError where there is none to start."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise FileNotFoundError(
            "chromium: wanted the program on the path, got none (Debian: apt-get install chromium)"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def open_page(
    browser: Browser, url: str, width: int = 1280, height: int = 900, dark: bool = False
) -> Page:
    """Open the address in a window as wide and as dark as asked for, and wait for its load."""
    page = browser.new_page(
        viewport={"width": width, "height": height},
        is_mobile=width < 600,
        color_scheme="dark" if dark else "light",
    )
    page.goto(url)
    return page


def wait_for(page: Page, script: str) -> Any:
    """Wait until the expression is true, and give its value."""
    return page.wait_for_function(script).json_value()


def requested(page: Page) -> list[str]:
    """The addresses that the page asked for."""
    urls = [request.url for request in page.requests()]
    assert len(urls) < REQUESTS_KEPT, "the page asked for more than Playwright remembers"
    return urls


def complaints(page: Page) -> list[str]:
    """Exceptions of the page, errors of its console and requests that failed."""
    failed = (f"{request.url}: {request.failure}" for request in page.requests() if request.failure)
    said = (message.text for message in page.console_messages() if message.type == "error")
    return [*map(str, page.page_errors()), *said, *failed]


def at_home(page: Page, address: str) -> bool:
    """Nothing was complained of, and nothing asked of another machine."""
    strangers = [
        url for url in requested(page) if not url.startswith((address, "data:", "about:", "blob:"))
    ]
    assert complaints(page) == [] and strangers == []
    return True


def settled(page: Page) -> None:
    """Wait for the formulas, where the page has any."""
    wait_for(page, "!document.querySelector('.math') || !!window.MathJax?.startup?.promise")
    page.evaluate("(window.MathJax?.startup?.promise ?? Promise.resolve()).then(() => true)")


AXE = ROOT / "build" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
AXE_LINE = "npm install --no-save --prefix build/npm axe-core@4.14.1"


def accessibility(page: Page) -> list[str]:
    """
    What axe-core finds serious or critical on the page, a line each; FileNotFoundError where
    axe-core is not installed.
    """
    if not AXE.exists():
        raise FileNotFoundError(f"axe-core: wanted it under build/npm, got none (run: {AXE_LINE})")
    page.evaluate(AXE.read_text() + "\n0")  # a script element would break the page's own policy
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{fault['id']}: {fault['help']}: {node['html'][:200]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
