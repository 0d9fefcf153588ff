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
    lacks += [f"letter {each}" for each in operation.sizes if each not in found["letters"]]
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


@each_page
def test_a_page_cites_public_sources_only(name):
    specification = CATALOGUE[name].specification
    faults = pitfalls.faults_of(CATALOGUE[name])
    told = [facts.without_seeds(inspect.getdoc(specification)), *(each.source for each in faults)]
    assert [text for text in told if re.search(r"\bseeds? \d{3}|design, section", text, re.I)] == []


def test_the_number_of_a_document_goes_and_its_lines_stay():
    told = facts.without_seeds("its pages (seeds 000\n    and 002) and (seed 004).")
    assert told == "its pages\n and."


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


def test_a_thread_is_that_of_a_fault_and_an_address_of_its_repository():
    sources = {fault.source for fault in read_faults()[0].values()}
    threads = facts.read("threads")["threads"]
    assert set(threads) <= sources
    for source, url in threads.items():
        assert url.startswith("https://github.com/")
        assert "commit" in source or url.rsplit("/", 1)[1] == source.rsplit("#", 1)[1]
