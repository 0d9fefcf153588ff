"""
The pages of the book in Chromium: found, drawn, whole at every width, accessible, printed.
`pytest -m docs` alone runs this.

It needs the extra `docs`, Chromium, and axe-core under build/npm; where one is missing it fails and
says what to install.
"""

import shutil
from pathlib import Path

import pytest

from tests.support.browser import (
    Browser,
    Page,
    accessibility,
    at_home,
    open_page,
    settled,
    wait_for,
)

LOOKED_AT = (
    "index.html",
    "operations/rel_shift.html",
    "operations/scaled_dot_product_attention.html",
)

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("pages")]


def test_the_search_finds_rel_shift(browser: Browser, address: str) -> None:
    page = open_page(browser, f"{address}/search.html?q=rel_shift")
    wait_for(page, "!!document.querySelector('#search-results li a')")
    found = page.evaluate(
        "[...document.querySelectorAll('#search-results li a')].map((a) => a.getAttribute('href'))"
    )
    assert any(link.startswith("operations/rel_shift.html") for link in found) and at_home(
        page, address
    )


def test_the_search_shows_the_words_around_a_hit_from_a_folder_too(
    browser: Browser, site: Path
) -> None:
    page = open_page(browser, f"{(site / 'search.html').as_uri()}?q=wrapped")
    context = wait_for(page, "document.querySelector('#search-results p.context')?.textContent")
    assert "wrap" in context.lower() and at_home(page, "file:")  # words are found by their stem


@pytest.mark.parametrize("name", LOOKED_AT[1:])
def test_formulas_are_rendered_and_pictures_are_there(
    browser: Browser, address: str, name: str
) -> None:
    page = open_page(browser, f"{address}/{name}")
    settled(page)
    page.evaluate("[...document.images].forEach((image) => { image.loading = 'eager'; })")
    wait_for(page, "[...document.images].every((image) => image.complete)")
    formulas, wrong = page.evaluate(
        "[document.querySelectorAll('mjx-container > svg').length, "
        "document.querySelectorAll('mjx-merror').length]"
    )
    assert formulas == page.evaluate("document.querySelectorAll('.math').length") > 3 and wrong == 0
    pictures = page.evaluate(
        "[...document.querySelectorAll('.picture')].map((picture) => "
        "[...picture.querySelectorAll('img')].filter((i) => i.offsetParent)"
        ".map((i) => [i.naturalWidth, i.alt.length]))"
    )
    assert len(pictures) >= 2 and all(width > 100 for each in pictures for width, _ in each)
    assert all(each[0][1] > 40 for each in pictures)  # the first drawing says what is to be seen
    assert at_home(page, address)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["light", "dark"])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_axe_finds_no_serious_fault(
    browser: Browser, address: str, name: str, width: int, dark: bool
) -> None:
    page = open_page(browser, f"{address}/{name}", width=width, dark=dark)
    settled(page)
    assert accessibility(page) == []


def test_axe_finds_a_fault_that_is_there(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "faulty.html"
    path.write_text(
        '<!doctype html><title>x</title><main><h1>x</h1><img src="data:,"><p style="color: #ddd; '
        'background: #fff">faint</p></main>'
    )
    assert {
        line.partition(":")[0] for line in accessibility(open_page(browser, path.as_uri()))
    } >= {
        "html-has-lang",
        "image-alt",
        "color-contrast",
    }


@pytest.mark.parametrize(("width", "beside"), [(1366, True), (1920, True), (390, False)])
def test_a_formula_stands_beside_its_code_where_there_is_room(
    browser: Browser, address: str, width: int, beside: bool
) -> None:
    page = open_page(browser, f"{address}/operations/rel_shift.html", width=width)
    settled(page)
    left = "[...document.querySelector('.sides').children].map((e) => e.getBoundingClientRect().x)"
    formula, code = page.evaluate(left)
    assert (formula + 100 < code) == beside


WIDTHS = (320, 360, 390, 600, 800, 1020, 1100, 1320, 1366, 1600, 1920, 2560)
KINDS = (
    *LOOKED_AT,
    "operations/transformer_xl.html",
    "operations/update_mems.html",
    "operations/chapter_layers.html",
    "chapters/gallery.html",
    "gallery/alibi_attention_causal_with_a_mask_alone.html",
    "chapters/machine.html",
    "chapters/blocked_attention.html",
    "chapters/where_you_work.html",
    "chapters/state.html",
    "search.html",
    "genindex.html",
    "_modules/attnverify/spec/alibi.html",
)
"""A page of each kind, and those with the longest lines."""

CUT = """
(() => {
  const wide = document.documentElement.scrollWidth > window.innerWidth;
  const hides = (e) => ['hidden', 'clip'].includes(getComputedStyle(e).overflowX)
    && !e.closest('mjx-assistive-mml');  // a formula for screen readers, which nobody is to see
  const cut = [...document.querySelectorAll('article *')].filter(
    (e) => e.clientWidth > 1 && e.scrollWidth > e.clientWidth + 1 && hides(e) && e.innerText?.trim()
  );
  const scrolled = ':is(article, main) :is(pre, div.math, figure, .table-wrapper, .shown, .wide)';
  const hiding = [...document.querySelectorAll(scrolled)].filter(
    (e) => e.clientWidth > 1 && e.scrollWidth > e.clientWidth + 1
  );
  return [...(wide ? ['the page: ' + document.documentElement.scrollWidth] : []),
          ...[...new Set([...cut, ...hiding])].map(
            (e) => e.className + ': ' + e.innerText.slice(0, 60)
          )];
})()
"""
"""
What is wider than the window, what hides some of its own text, and code, a formula, a picture or a
table that has to be scrolled to be read.
"""


def cut_off(page: Page, widths: tuple[int, ...]) -> list[str]:
    """What is cut off or hidden, and at which widths of the window."""
    found = []
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        found += [f"{width} px, {words}" for words in page.evaluate(CUT)]
    return found


@pytest.mark.parametrize("name", KINDS)
def test_no_text_is_cut_off_at_any_width(browser: Browser, address: str, name: str) -> None:
    page = open_page(browser, f"{address}/{name}")
    settled(page)
    assert cut_off(page, WIDTHS) == []


def test_text_that_is_cut_off_is_noticed(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "cut.html"
    path.write_text(
        '<!doctype html><article><div style="width: 500px">wide</div>'
        '<p style="width: 90px; overflow: hidden; white-space: nowrap">long enough to be cut</p>'
        '<pre style="width: 90px; overflow: auto">a line of code that has to be scrolled</pre>'
        '<div class="table-wrapper" style="width: 90px; overflow: auto"><table><td>'
        "as_wide_as_it_likes</table></div>"
    )
    found = cut_off(open_page(browser, path.as_uri()), (320, 600))
    said = [words.partition(": ")[2].partition(" ")[0] for words in found]
    assert said == ["508", *2 * ["long", "a", "as_wide_as_it_likes"]]


def test_a_page_is_printed_without_what_only_a_screen_needs(browser: Browser, address: str) -> None:
    page = open_page(browser, f"{address}/operations/rel_shift.html")
    settled(page)
    page.emulate_media(media="print")
    shown = "[...document.querySelectorAll('.skip-to-content, .sidebar-drawer, .live, .only-dark')]"
    assert page.evaluate(f"{shown}.filter((e) => e.getClientRects().length).length") == 0
    scrolls = (
        "[...document.querySelectorAll('article pre')].map((e) => getComputedStyle(e).overflowX)"
    )
    assert set(page.evaluate(scrolls)) == {"visible"}


def test_what_this_needs_is_here() -> None:
    assert shutil.which("chromium") or shutil.which("google-chrome"), "apt-get install chromium"
