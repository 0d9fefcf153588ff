"""
Every page of the book at twelve widths and by axe-core, in light and in dark. It takes minutes: the
pages of each kind are looked at on every commit, by test_site_in_browser.py.
"""

from pathlib import Path

import pytest

from tests.docs.test_site_in_browser import WIDTHS, cut_off
from tests.support.browser import Browser, accessibility, open_page, settled

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("every_page")]


@pytest.fixture
def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_no_page_cuts_text_off_at_any_width(browser: Browser, pages: list[Path]) -> None:
    found = {}
    for path in pages:
        page = open_page(browser, path.as_uri())
        settled(page)
        found[path.stem] = cut_off(page, WIDTHS)
        page.close()
    print(len(pages), "pages at", len(WIDTHS), "widths")
    assert len(found) > 50 and not [words for words in found.items() if words[1]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(
    browser: Browser, pages: list[Path], dark: bool
) -> None:
    found = {}
    for path in pages:
        width = 390 if dark else 1280  # where tables scroll, and where they do not
        page = open_page(browser, path.as_uri(), width=width, dark=dark)
        settled(page)
        found[path.stem] = accessibility(page)
        page.close()
    print(len(pages), "pages by axe-core")
    assert len(found) > 50 and not [words for words in found.items() if words[1]]
