"""Sequences in pages of a pool: every backend against the specification, and laws without one."""

import numpy as np
import pytest

from attnverify import numpy_ref, spec
from attnverify.differential import *

CHAPTER = "paged"


def drawn(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    pools = {n: rng.standard_normal((7, 3, 2, 4)) for n in ("key_pages", "value_pages")}
    table = np.array([[6, 0, 3, 2], [1, 5, 4, 0], [2, 2, 2, 2]])
    starts, lengths = np.array([1, 3, 7, 7]), np.array([7, 10, 0])
    rows = {"query": rng.standard_normal((9, 4, 4)), "query_starts": starts}
    return pools | rows | {"page_table": table, "lengths": lengths, "causal": True}


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_pages_laid_end_to_end_are_packed_attention(column):
    call = drawn(1)
    tokens = {
        name: np.concatenate(
            [
                call[f"{name}_pages"][row].reshape(-1, 2, 4)[:m]
                for row, m in zip(call["page_table"], call["lengths"], strict=True)
            ]
        )
        for name in ("key", "value")
    }
    starts = np.concatenate([[0], np.cumsum(call["lengths"])])
    whole = spec.packed_attention(
        call["query"], **tokens, query_starts=call["query_starts"], key_starts=starts, causal=True
    )
    for found, expected in zip(column.paged_attention(**call), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_where_a_page_lies_does_not_matter(column):
    call, order = drawn(2), np.array([3, 0, 6, 5, 1, 2, 4])
    moved = {name: call[name][order] for name in ("key_pages", "value_pages")}
    moved["page_table"] = np.argsort(order)[call["page_table"]]
    for x, y in zip(
        column.paged_attention(**call), column.paged_attention(**call | moved), strict=True
    ):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_a_page_that_stands_twice_counts_twice(column):
    call = {"query": np.zeros((1, 1, 1)), "key_pages": np.zeros((2, 1, 1, 1))}
    call |= {"value_pages": np.array([1.0, 4.0]).reshape(2, 1, 1, 1)}
    call |= {"page_table": np.array([[0, 1, 0]]), "lengths": np.array([3])}
    output, lse = column.paged_attention(**call, query_starts=np.array([0, 1]))
    assert [output.item(), lse.item()] == pytest.approx([2, np.log(3)], rel=1e-12)
