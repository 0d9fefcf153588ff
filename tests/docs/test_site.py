"""The built site as files: its links, its clauses, its doctests, and where its data is from."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from attnverify import ROOT
from attnverify.catalogue import docstrings
from attnverify.catalogue.operation import CATALOGUE
from tests.docs.built_book import build, build_once, offline
from tests.docs.test_facts import PRIVATE

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("docs")]


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


def test_a_site_is_built_once_and_a_build_that_fails_fails_for_all(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "book"
    source.mkdir()
    (source / "conf.py").write_text("")
    (source / "index.rst").write_text("Title\n=====\n\n:no-such-role:`x`\n")
    with pytest.raises(AssertionError, match="no-such-role"):
        build_once(folder, source)
    (source / "index.rst").write_text("Title\n=====\n")
    with pytest.raises(AssertionError, match="the process that began it"):
        build_once(folder, source)
    begun = build_once(tmp_path / "another", source)
    assert build_once(tmp_path / "another", source) == begun and (begun / "index.html").exists()


def test_the_line_of_the_readme_builds_the_same() -> None:
    line = re.search(r"sphinx-build (.*) docs build/docs$", (ROOT / "README.md").read_text(), re.M)
    assert line is not None and line[1].split() == ["-W", "-q"]  # what build() says too


def test_the_doctests_of_the_book_pass(site: Path) -> None:
    folder = site.parent
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


def test_the_data_of_the_book_says_where_it_is_from() -> None:
    for path in (ROOT / "docs" / "data").glob("*.json"):
        found = json.loads(path.read_text())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]) and re.fullmatch(
            r"[0-9a-f]{7,40}", found["commit"]
        ), path.name
        kinds = ("operations", "kinds", "faults", "kernels", "mutants")
        assert any(found.get(kind) for kind in kinds), path.name
        assert found["profile"] and found["installed"], path.name
