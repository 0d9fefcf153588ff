"""The chapter that sets this book beside others: what it says of this one is counted."""

import sys

import pytest

from attnverify import ROOT
from attnverify.catalogue.operation import CATALOGUE

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from book import beside, facts, pages

ROWS = facts.read("beside")["rows"]
FEW = {CATALOGUE[name]: pages.page(CATALOGUE[name]) for name in ("rel_shift", "init_mems")}


def test_every_row_has_what_counts_it_and_a_word_for_each_other_book():
    assert [row["name"] for row in ROWS] == list(beside.HERE)
    assert all(row[name] for row in ROWS for name in facts.read("beside")["others"])


def test_every_row_is_said_to_be_on_all_pages_or_why_not():
    said = {row["name"]: beside.told(row, FEW) for row in ROWS}
    assert said.pop("formula").startswith("on 1 of 2 pages: ``init_mems``")
    assert set(said.values()) == {"yes, on all 2 pages"}


@pytest.mark.parametrize(
    "name", ["why", "paper", "arguments", "whole", "versions", "traps", "speed"]
)
def test_what_a_page_lacks_is_noticed(name):
    without = {operation: "" for operation in FEW}
    (row,) = [row for row in ROWS if row["name"] == name]
    with pytest.raises(KeyError, match="why_not"):
        beside.told(row, without)
    assert beside.told(row | {"why_not": "x"}, without) == "on 0 of 2 pages: x"


def test_the_chapter_is_a_table_with_every_row():
    text = beside.page(FEW)
    assert all(f"   * - {row['expects']}\n" in text for row in ROWS)
