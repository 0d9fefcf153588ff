"""
The book, built without network and read in Chromium. `pytest -m docs` alone runs this.

It needs the extra `docs`, Chromium, and axe-core under build/npm; where one is missing it fails and
says what to install.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from attnverify import ROOT, spec
from attnverify.catalogue import docstrings
from attnverify.catalogue.operation import CATALOGUE
from tests.docs.test_chapters import STATUS_1, blocks
from tests.docs.test_facts import PRIVATE
from tests.docs.test_live_numpy import CELLS
from tests.support.browser import (
    Browser,
    Page,
    accessibility,
    chromium,
    complaints,
    open_page,
    requested,
    wait_for,
)

NO_NETWORK = """
import socket

def refused(*arguments, **named):
    raise OSError("the build wanted the network")

socket.socket.connect = socket.socket.connect_ex = refused
socket.getaddrinfo = socket.create_connection = refused
"""
LOOKED_AT = (
    "index.html",
    "operations/rel_shift.html",
    "operations/scaled_dot_product_attention.html",
)

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("docs")]


def offline(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a Python command in which every connection is refused."""
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def build(builder: str, source: Path, folder: Path) -> str:
    """
    Build a copy of the book, warnings as errors, and return what was said; the assertion shows it
    where the build fails.
    """
    command = [
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        builder,
        "-d",
        str(folder / "read"),
        str(source),
        str(folder / builder),
    ]
    done = offline(command, folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("book")


@pytest.fixture(scope="module")
def site(folder: Path) -> Path:
    """The built site."""
    build("html", ROOT / "docs", folder)
    return folder / "html"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on a port of this machine."""
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *what: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def at_home(page: Page, address: str) -> bool:
    """Nothing was complained of, and nothing asked of another machine."""
    strangers = [
        url for url in requested(page) if not url.startswith((address, "data:", "about:", "blob:"))
    ]
    assert complaints(page) == [] and strangers == []
    return True


def test_the_build_cannot_reach_the_network(tmp_path: Path) -> None:
    done = offline(["-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9/')"], tmp_path)
    assert done.returncode == 1 and "the build wanted the network" in done.stderr


def test_a_page_that_refers_to_nothing_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "conf.py").write_text("nitpicky = True\n")
    (tmp_path / "source" / "index.rst").write_text(
        "Title\n=====\n\n:func:`attnverify.spec.shifts.no_such_function`\n"
    )
    with pytest.raises(AssertionError, match="no_such_function"):
        build("html", tmp_path / "source", tmp_path)


def test_the_line_of_the_readme_builds_the_same() -> None:
    line = re.search(r"sphinx-build (.*) docs build/docs$", (ROOT / "README.md").read_text(), re.M)
    assert line is not None and line[1].split() == ["-W", "-q"]  # what build() says too


def test_the_doctests_of_the_book_pass(folder: Path, site: Path) -> None:
    build("doctest", ROOT / "docs", folder)
    said = (folder / "doctest" / "output.txt").read_text()
    assert int(re.search(r"(\d+) tests\s+0 failures in tests", said)[1]) > 80  # type: ignore[index]


class Links(HTMLParser):
    """The links and the names of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.names.add(value)


def broken_links(site: Path) -> list[str]:
    """Links of the built pages that lead nowhere inside the site, and those that lead out of it."""
    pages, public = {path: Links(path.read_text()) for path in site.rglob("*.html")}, cited()
    return [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not leads(path, link, pages, public)
    ]


THEME = "https://github.com/pradyunsg/furo"
"""The theme's own mention in the foot of a page."""


def cited() -> set[str]:
    """The public sources that the pages may lead to: those that docs/list_links.py lists."""
    line = [sys.executable, str(ROOT / "docs" / "list_links.py")]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return {listed.split()[1] for listed in done.stdout.splitlines()}


def outward(site: Path) -> set[str]:
    """The addresses outside of the site to which its pages lead."""
    links = {link for path in site.rglob("*.html") for link in Links(path.read_text()).links}
    return {link for link in links if urlsplit(link).netloc and not link.startswith(THEME)}


def leads(path: Path, link: str, pages: dict[Path, Links], public: set[str]) -> bool:
    parts = urlsplit(link)
    if parts.scheme == "data":
        return True
    if parts.scheme or parts.netloc:
        return link in public or link.startswith(THEME)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    known = target in pages and (
        not parts.fragment or unquote(parts.fragment) in pages[target].names
    )
    return known or (target not in pages and target.exists())


def test_every_link_leads_somewhere(site: Path) -> None:
    assert broken_links(site) == []


def test_no_page_names_a_document_that_readers_cannot_open(site: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert len(texts) > 50
    assert [path.name for path, text in texts.items() if PRIVATE.search(text)] == []


def test_what_the_list_of_public_sources_has_is_linked(site: Path) -> None:
    assert outward(site) == cited()


def test_every_clause_has_a_place_to_which_reports_lead(site: Path) -> None:
    for name, operation in CATALOGUE.items():
        page = site / "operations" / f"{operation.forward.name}.html"
        places = Links(page.read_text()).names
        said = docstrings.clauses(operation.specification)
        wanted = {docstrings.anchor_of_clause(name, number) for number in said}
        assert wanted and wanted | {f"attnverify.spec.{operation.chapter}.{name}"} <= places, name


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="x"><a href="#x"></a><a href="#y"></a><a href="b.html"></a><a '
        'href="https://example.org"></a>'
    )
    assert broken_links(tmp_path) == ["a.html: #y", "a.html: b.html", "a.html: https://example.org"]


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
    assert "wrapped" in context.lower() and at_home(page, "file:")


def settled(page: Page) -> None:
    """Wait for the formulas, where the page has any."""
    wait_for(page, "!document.querySelector('.math') || !!window.MathJax?.startup?.promise")
    page.evaluate("(window.MathJax?.startup?.promise ?? Promise.resolve()).then(() => true)")


@pytest.mark.parametrize("name", LOOKED_AT[1:])
def test_formulas_are_rendered_and_pictures_are_there(
    browser: Browser, address: str, name: str
) -> None:
    page = open_page(browser, f"{address}/{name}")
    settled(page)
    page.evaluate("[...document.images].forEach((image) => { image.loading = 'eager'; })")
    wait_for(page, "[...document.images].every((image) => image.complete)")
    formulas, wrong = page.evaluate(
        "[document.querySelectorAll('mjx-container svg').length, "
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


def shown(page: Page) -> list[list[list[str]]]:
    """The tables of the live cell, as text."""
    tables = (
        "[...document.querySelectorAll('.live table')].map((t) => [...t.rows].map((r) => "
        "[...r.cells].map((c) => c.textContent)))"
    )
    return list(page.evaluate(tables))


def written(x: np.ndarray) -> list[list[str]]:
    return [[f"{number:g}" for number in row] for row in x]


@pytest.mark.parametrize("name", ["shift_right", "rel_shift"])
def test_the_live_cell_answers_with_the_numbers_of_the_specification(
    browser: Browser, address: str, name: str
) -> None:
    page = open_page(browser, f"{address}/operations/{name}.html")
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    for N, M in ((3, 4), (1, 1), (5, 2), (2, 7), (7, 8)):
        x = np.arange(1.0, N * M + 1).reshape(N, M)
        set_sizes(page, N=N, M=M)
        assert shown(page) == [written(x), written(getattr(spec, name)(x))]
    assert at_home(page, address)


def set_sizes(page: Page, **sizes: int) -> None:
    """Move the sliders, as a reader does."""
    for letter, size in sizes.items():
        slider = f"document.querySelector('.live input[name={letter}]')"
        page.evaluate(
            f"{slider}.value = {size}; {slider}.dispatchEvent(new Event('input', {{bubbles: "
            f"true}}))"
        )


def test_the_picture_of_a_live_cell_follows_its_numbers(browser: Browser, address: str) -> None:
    page = open_page(browser, f"{address}/operations/softmax.html")
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    for N, M, hidden in ((2, 5, 0), (3, 4, 1), (2, 3, 3)):
        set_sizes(page, N=N, M=M, hidden=hidden)
        score = 2 * np.sin(np.arange(1.0 * N * M)).reshape(N, M)
        weights = spec.softmax(score, np.broadcast_to(np.arange(M) < M - hidden, (N, M)))
        widths = page.evaluate(
            "[...document.querySelectorAll('.live svg line')]"
            ".map((line) => line.getAttribute('stroke-width'))"
        )
        assert np.allclose([*map(float, widths)], 1 + 5 * weights[weights > 0])


@pytest.mark.parametrize("name", ["shift_right", "rel_shift"])
def test_the_rows_of_a_shift_move_to_their_places(
    browser: Browser, address: str, name: str
) -> None:
    page = open_page(browser, f"{address}/operations/{name}.html")
    page.emulate_media(reduced_motion="reduce")
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    x = np.arange(1.0, 13.0).reshape(3, 4)
    assert moved_numbers(page) == places_of(x)
    page.locator(".live button[aria-pressed]").click()
    assert moved_numbers(page) == places_of(getattr(spec, name)(x))


def moved_numbers(page: Page) -> dict[str, list[str]]:
    """Where the numbers of the moving picture are to be seen, each with its places."""
    seen = page.evaluate(
        "[...document.querySelectorAll('.live svg .moves')].filter((g) => g.style.opacity === '1')"
        ".map((g) => [g.textContent, g.style.transform])"
    )
    return {number: sorted(at for other, at in seen if other == number) for number, _ in seen}


def places_of(x: np.ndarray) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for (i, j), number in np.ndenumerate(x):
        found.setdefault(f"{number:g}", []).append(f"translate({36 * j}px, {36 * i}px)")
    return {number: sorted(places) for number, places in found.items()}


def test_curves_of_a_live_cell_follow_its_numbers(browser: Browser, site: Path) -> None:
    page = open_page(browser, (site / "operations" / "get_slopes.html").as_uri())
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    for H in (3, 8):
        set_sizes(page, H=H)
        points = page.locator(".live svg polyline").get_attribute("points")
        height = np.array([float(point.split(",")[1]) for point in str(points).split()])
        slopes = spec.get_slopes(H)
        risen = (height[-1] - height) / (height[-1] - height[0])
        assert np.allclose(risen, (slopes - slopes[-1]) / (slopes[0] - slopes[-1]))


def test_every_live_cell_gives_the_numbers_of_the_specification_from_a_folder(
    browser: Browser, site: Path
) -> None:
    page = open_page(browser, (site / "operations" / "causal_mask.html").as_uri())
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    for name, cell in CELLS.items():
        sizes = {letter: most for letter, (_, _, most) in cell["sliders"].items()}
        asked = [cell["code"], json.dumps(sizes)]
        said = json.loads(page.evaluate("(asked) => loadAnswer()(...asked)", asked))
        names = {"np": np, **vars(spec), **sizes}
        exec(cell["code"], names)
        assert list(said["show"]) == list(names["show"]), name
        for wanted, rows in zip(names["show"].values(), said["show"].values(), strict=True):
            assert equal(rows, np.asarray(wanted, float)), name
    assert at_home(page, "file:")


def equal(rows: list[list[float | str]], wanted: np.ndarray) -> bool:
    """Whether a cell has these numbers, but for the order of its sums; an infinity is a word."""
    numbers = [[x.replace("∞", "inf") if isinstance(x, str) else x for x in row] for row in rows]
    found, finite = np.array(numbers).astype(float).reshape(wanted.shape), np.isfinite(wanted)
    away = abs(found[finite] - wanted[finite])
    near = away <= 1e-12 * abs(wanted[finite]).max(initial=0)
    return bool(near.all() and (found[~finite] == wanted[~finite]).all())


def test_a_live_cell_with_another_number_is_noticed() -> None:
    wanted = np.array([[1.0, -np.inf], [0.0, 3.0]])
    assert equal([[1, "-∞"], [0, 3]], wanted)
    assert not equal([[1, "∞"], [0, 3]], wanted) and not equal([[1, "-∞"], [1e-9, 3]], wanted)


def test_a_live_cell_says_what_the_specification_refuses(browser: Browser, address: str) -> None:
    page = open_page(browser, f"{address}/operations/causal_mask.html")
    page.evaluate(
        "document.querySelector('.live textarea').value = 'show = {\"none\": causal_mask(0, M)}'"
    )
    page.evaluate("document.querySelector('.live').requestSubmit()")
    said = wait_for(page, "document.querySelector('.said').textContent")
    with pytest.raises(ValueError) as refused:
        spec.causal_mask(0, 5)
    assert said == f"ValueError: {refused.value}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_axe_finds_no_serious_fault(browser: Browser, address: str, name: str, dark: bool) -> None:
    page = open_page(browser, f"{address}/{name}", dark=dark)
    settled(page)
    assert accessibility(page) == []
    page.set_viewport_size({"width": 390, "height": 900})  # where tables scroll
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
  const scrolled = 'article :is(pre, div.math, figure, .table-wrapper, .shown)';
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


@pytest.mark.xdist_group("tutorial")  # it needs none of the pages: beside their build
def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    copy = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    text = (copy / "docs" / "chapters" / "first_kernel.rst").read_text()
    last = ""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST") and name != "PYTHONPATH"
    }
    for language, caption, block in blocks(text):
        if caption and language == "python":
            (copy / caption).write_text(block)
        elif language == "sh":
            command = ["bash", "-euo", "pipefail", "-c", block]
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=600
            )
            last = done.stdout
            wanted = caption == STATUS_1
            assert done.returncode == wanted, block + done.stdout + done.stderr
        else:
            assert [line for line in block.splitlines() if line not in last] == [], last


def test_the_data_of_the_book_says_where_it_is_from() -> None:
    for path in (ROOT / "docs" / "data").glob("*.json"):
        found = json.loads(path.read_text())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]) and re.fullmatch(
            r"[0-9a-f]{7,40}", found["commit"]
        ), path.name
        assert any(found.get(kind) for kind in ("operations", "kinds", "faults", "kernels")), (
            path.name
        )
        assert found["profile"] and found["installed"], path.name


def test_what_this_needs_is_here() -> None:
    assert shutil.which("chromium") or shutil.which("google-chrome"), "apt-get install chromium"
