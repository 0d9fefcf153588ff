"""
The facts of the pages are whole: no operation without a reason, a paper, public code, words for its
arguments; and readers are shown public sources only.
"""

import inspect
import re
import sys

import pytest

from attnverify import ROOT
from attnverify.bounds import BOUNDS
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import LETTERS
from attnverify.faults.registry import read_faults

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from book import error_bounds, facts, pages, pitfalls, source_lines

FACTS = facts.read()
each_operation = pytest.mark.parametrize("name", CATALOGUE)
each_page = pytest.mark.parametrize("name", [each.name for each in pages.pages_of_the_book()])


def missing(found: dict, name: str) -> list[str]:
    """What an operation of such facts lacks."""
    operation, row = CATALOGUE[name], found["operations"].get(CATALOGUE[name].forward.name, {})
    words = found["arguments"] | row.get("arguments", {})
    lacks = [f"argument {each}" for each in operation.arguments if not words.get(each)]
    lacks += [f"letter {each}" for each in operation.sizes if each not in LETTERS]
    lacks += [key for key in ("papers", "code") if not row.get(key)]
    return lacks + ["why"] * (row.get("why", "").count(".") + row.get("why", "").count(";") < 2)


@each_operation
def test_no_operation_lacks_a_fact(name):
    assert missing(FACTS, name) == []


def test_a_fact_that_is_not_there_is_noticed():
    rows = FACTS["operations"] | {
        "softmax": {"why": "It normalises.", "code": ["torch_functional"]}
    }
    found = FACTS | {"operations": rows, "arguments": {"mask": "a mask"}}
    assert missing(found, "softmax") == ["argument score", "papers", "why"]


def test_facts_are_about_operations_that_exist():
    assert set(FACTS["operations"]) == {each.name for each in pages.pages_of_the_book()}


def test_every_paper_and_every_public_code_is_cited_and_every_citation_is_there():
    rows = FACTS["operations"].values()
    for key in ("papers", "code"):
        assert {name for row in rows for name in row[key]} == set(FACTS[key])


def test_every_rule_of_a_bound_has_its_formula_and_no_formula_is_of_nothing():
    used = {
        rule.__name__
        for each in pages.pages_of_the_book()
        if not each.exact
        for rule in error_bounds.rules(BOUNDS[each.name])
    }
    assert used == set(FACTS["rules"])


@each_operation
def test_a_page_cites_public_sources_only(name):
    specification = CATALOGUE[name].specification
    faults = pitfalls.faults_of(CATALOGUE[name])
    told = [facts.without_seeds(inspect.getdoc(specification)), *(each.source for each in faults)]
    assert [text for text in told if PRIVATE.search(text)] == []


@pytest.mark.parametrize(
    "text", ["(seed 004)", "seeds 000\n and 002", "of the two seeds", "the PyTorch tutorial"]
)
def test_a_document_that_readers_cannot_open_is_noticed(text):
    assert PRIVATE.search(text) and not PRIVATE.search("seed 0, drawn from a seed")


PRIVATE = re.compile(
    r"\bseeds?\s+\d{3}\b|two seeds|design, section|the (PyTorch|TensorFlow 2) tutorial", re.I
)


def test_the_number_of_a_document_goes_and_its_lines_stay():
    told = facts.without_seeds("its pages (seeds 000\n    and 002), (seed 004) and (as they are).")
    assert told == "its pages,\n and (as they are)."
    told = facts.without_seeds("a squeeze (seed 001; OpenNMT-py PR\n    #109), and B = 1")
    assert told == "a squeeze (OpenNMT-py PR\n    #109), and B = 1"


def test_the_sources_of_an_erratum_are_linked():
    (told,) = [text for text in pitfalls.section(CATALOGUE["additive_score"]) if "Erratum" in text]
    assert "`OpenNMT-py PR #109 <https://github.com/OpenNMT/OpenNMT-py/pull/109>`__" in told


@each_page
def test_a_page_has_its_links_and_its_whole_function(name):
    text = "\n".join(facts.section_why(CATALOGUE[name]))
    for key in ("papers", "code"):
        assert all(FACTS[key][each][1] in text for each in FACTS["operations"][name][key])
    assert f"   def {name}(" in "\n".join(pages.whole_function(CATALOGUE[name]))


def test_the_whole_function_is_the_source_without_its_docstring():
    first, *helpers = source_lines.whole(CATALOGUE["alibi_attention"].specification)
    assert "return attend(alibi_score(query, key), value" in first.text and '"""' not in first.text
    assert {"attend", "alibi_score", "causal_and"} <= {helper.function for helper in helpers}
    assert not {"check", "softmax"} & {helper.function for helper in helpers}


def test_every_fault_that_has_a_source_has_an_address_to_read_of_it():
    sources = {fault.source for fault in read_faults().values()} - {"this project"}
    assert sources == {name for found in facts.read("threads").values() for name in found}


@pytest.mark.parametrize("kind", ["threads", "commits", "pages"])
def test_an_address_is_that_of_its_source(kind):
    assert [pair for pair in facts.read("threads")[kind].items() if not fits(kind, *pair)] == []


def fits(kind: str, source: str, url: str) -> bool:
    """Whether an address can be that of a source: its number, or the commit in full."""
    words = source.split()
    if kind == "threads":
        of = "pull" if "PR" in words else "issues"
        return (
            re.fullmatch(rf"https://github.com/[^/]+/[^/]+/{of}/{words[-1][1:]}", url) is not None
        )
    if kind == "commits":
        told = rf"https://github.com/[^/]+/[^/]+/commit/{words[-1]}[0-9a-f]+"
        return re.fullmatch(told, url) is not None and len(url.rsplit("/", 1)[1]) == 40
    return url.startswith("https://")


@pytest.mark.parametrize(
    ("kind", "source", "url"),
    [
        ("threads", "labml #218", "https://github.com/labmlai/papers/issues/219"),
        ("threads", "labml PR #218", "https://github.com/labmlai/papers/issues/218"),
        ("commits", "labml commit 1f38b232", "https://github.com/labmlai/papers/commit/1f38b232"),
        ("commits", "labml commit 1f38b232", f"https://github.com/a/b/commit/{'0' * 40}"),
        ("pages", "labml", "http://nn.labml.ai"),
    ],
)
def test_an_address_of_something_else_is_noticed(kind, source, url):
    assert not fits(kind, source, url)
