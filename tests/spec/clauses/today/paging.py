"""Clauses of caches in pages."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.conventions.caches.paging import there
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import all_close, close

PAGED = "paged_attention"
Call = dict[str, Any]


def drawn(**more: Any) -> Call:
    """Two sequences of 2 and 3 rows, with 7 and 5 keys in pages of 3 slots."""
    rng = np.random.default_rng(0)
    shapes = {"query": (5, 4, 4), "key_pages": (6, 3, 2, 4), "value_pages": (6, 3, 2, 5)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    table = {"page_table": np.array([[4, 0, 5], [2, 4, 1]]), "lengths": np.array([7, 5])}
    return arrays | table | {"query_starts": np.array([0, 2, 5])} | more


def level(
    pages: list[list[float]], table: list[list[int]], lengths: list[int], **more: Any
) -> Call:
    """One head and one row a sequence, whose scores are all 0, over these values."""
    values, B = np.array(pages)[:, :, None, None], len(lengths)
    pools = {"key_pages": 0 * np.nan_to_num(values), "value_pages": values}
    rows = {"query": np.zeros((B, 1, 1)), "query_starts": np.arange(B + 1)}
    return pools | rows | {"page_table": np.array(table), "lengths": np.array(lengths)} | more


def alone(call: Call, b: int) -> Any:
    """The grouped attention of a sequence, its slots gathered by hand."""
    t, m = slice(*call["query_starts"][b : b + 2]), call["lengths"][b]
    pools = (call["key_pages"], call["value_pages"])
    key, value = (np.concatenate([x[z] for z in call["page_table"][b]])[:m] for x in pools)
    heads = (x.swapaxes(0, 1)[None] for x in (call["query"][t], key, value))
    return [x[0].swapaxes(0, 1) for x in spec.grouped_attention(*heads)]


def by_table(change: Any) -> Function:
    return given(PAGED, lambda page_table, **x: {"page_table": change(page_table, **x)})


@clause(PAGED, 1, false=[
    by_table(lambda table, **_: table[:, ::-1]), by_table(lambda table, **_: 0 * table + table[0]),
    given(PAGED, lambda value_pages, **_: {"value_pages": value_pages[:, ::-1]}),
])  # fmt: skip
def a_key_stands_in_the_slot_of_its_page(attention: Function) -> None:
    call = drawn()
    found = attention(**call)
    for b, t in enumerate((slice(2), slice(2, 5))):
        assert all_close([x[t] for x in found], alone(call, b))


def of_whole_pages(lengths: ndarray, key_pages: ndarray, **_: Any) -> Call:
    W = key_pages.shape[1]
    return {"lengths": -(-lengths // W) * W}


def one_row_each(query_starts: ndarray, **_: Any) -> Call:
    """Twin: the rows behind the first of a sequence belong to none."""
    return {"query_starts": np.arange(len(query_starts))}


@clause(PAGED, 2, false=[given(PAGED, of_whole_pages), given(PAGED, one_row_each)])
def lengths_count_keys_and_starts_rows(attention: Function) -> None:
    call = level([[1.0, 3.0], [5.0, 9.0]], [[0, 1], [1, 0]], [3, 1])
    assert close(attention(**call)[0].ravel(), [3.0, 5.0])
    rows = {"query": np.zeros((3, 1, 1)), "query_starts": np.array([0, 2, 3])}
    assert close(attention(**call | rows)[0].ravel(), [3.0, 3.0, 5.0])


def aligned_at_the_start(lengths: ndarray, **_: Any) -> Call:
    return {"offset": 0 * lengths}


@clause(PAGED, 3, false=[
    given(PAGED, aligned_at_the_start), given(PAGED, lambda **_: {"offset": None}),
    given(PAGED, lambda **_: {"causal": False}), given(PAGED, lambda **_: {"pinned": 0}),
    given(PAGED, lambda **_: {"chunk": None}),
])  # fmt: skip
def the_last_row_stands_at_the_last_key(attention: Function) -> None:
    call = level([[1.0, 3.0], [5.0, 9.0]], [[1, 0], [0, 1]], [3, 4])
    assert close(attention(**call, window=(0, None), causal=True)[0].ravel(), [1.0, 9.0])
    moved = {"offset": np.array([0, 1]), "causal": True}
    assert close(attention(**call, **moved)[0].ravel(), [5.0, 2.0])
    pinned = attention(**call, window=(0, 0), pinned=1)[0].ravel()
    assert close(pinned, [3.0, 5.0])
    assert close(attention(**call, chunk=2)[0].ravel(), [1.0, 7.0])


def times_zero(found: Any, value_pages: ndarray, **_: Any) -> Any:
    return found[0] + 0 * value_pages.sum(), found[1]


@clause(PAGED, 4, false=[answering(PAGED, times_zero), given(PAGED, of_whole_pages)])
def an_unused_slot_is_not_looked_at(attention: Function) -> None:
    nan = np.nan
    call = level([[1.0, nan], [nan, nan], [nan, 7.0]], [[2, 0]], [3])
    call["key_pages"][[0, 1, 1], [1, 0, 1]] = np.inf
    assert close(attention(**call, window=(1, 0))[0].item(), 4.0)


@clause(PAGED, 5, false=[
    by_table(lambda table, **x: there(x, table)), by_table(lambda table, **_: abs(table)),
    answering(PAGED, lambda found, page_table, **_: (found[0] + page_table.max(), found[1])),
])  # fmt: skip
def an_entry_is_looked_at_where_a_row_sees_a_key(attention: Function) -> None:
    call = level([[1.0, 3.0], [5.0, 7.0]], [[0, -1], [99, 1]], [2, 4])
    assert close(attention(**call, window=(1, 0))[0].ravel(), [2.0, 6.0])
    for wrong in ([[0, 0], [99, 1]], [[-1, 0], [0, 1]], [[0, 0], [0, 2]]):
        assert refuses(attention, "page_table: wanted", **call | {"page_table": np.array(wrong)})


def each_once(page_table: ndarray, lengths: ndarray, key_pages: ndarray, **_: Any) -> Call:
    """Twin: a page that stands twice in a row of the table is read once."""
    rows = [[*dict.fromkeys(row)] for row in page_table.tolist()]
    found = [row + [row[0]] * (page_table.shape[1] - len(row)) for row in rows]
    most = [len(row) * key_pages.shape[1] for row in rows]
    return {"page_table": np.array(found), "lengths": np.minimum(lengths, most)}


def of_the_first_alone(page_table: ndarray, lengths: ndarray, **_: Any) -> Call:
    """Twin: what the first sequence has named is taken."""
    taken = np.isin(page_table[:, 0], page_table[0]) & (np.arange(len(lengths)) > 0)
    return {"lengths": np.where(taken, 0, lengths)}


@clause(PAGED, 6, false=[given(PAGED, each_once), given(PAGED, of_the_first_alone)])
def sequences_share_pages(attention: Function) -> None:
    call = level([[1.0], [4.0]], [[0, 1, 0], [0, 0, 0]], [3, 1])
    output, lse = attention(**call)
    assert close(output.ravel(), [2.0, 1.0]) and close(lse.ravel(), np.log([3, 1]))


def nothing_as(output: float, lse: float) -> Function:
    """Twin: other numbers where a row sees nothing."""

    def change(found: Any, **_: Any) -> Any:
        empty = (found[0] == 0).all(-1)
        return np.where(empty[..., None], output, found[0]), np.where(empty, lse, found[1])

    return answering(PAGED, change)


def to_the_ends(query: ndarray, query_starts: ndarray, **_: Any) -> Call:
    """Twin: rows in front and behind belong to the nearest sequence."""
    return {"query_starts": np.array([0, *query_starts[1:-1], len(query)])}


@clause(PAGED, 7, false=[nothing_as(np.nan, -np.inf), nothing_as(0.0, np.inf),
                         given(PAGED, to_the_ends)])  # fmt: skip
def a_sequence_may_lack_rows_or_keys(attention: Function) -> None:
    call = level([[1.0, 3.0]], [[0], [-1], [0]], [2, 0, 1])
    call |= {"query": np.zeros((4, 1, 1)), "query_starts": np.array([1, 2, 3, 3])}
    call["query"][3] = np.nan
    output, lse = attention(**call)
    assert close(output.ravel(), [0.0, 2.0, 0.0, 0.0]) and close(lse[1, 0], np.log(2))
    assert (lse[[0, 2, 3], 0] == -np.inf).all()
    _, lse = attention(**call, sink=np.array([3.0]))
    assert close(lse.ravel(), [3.0, np.log(2 + np.exp(3)), 3.0, 3.0])


def clipped(lengths: ndarray, key_pages: ndarray, page_table: ndarray, **_: Any) -> Call:
    return {"lengths": np.clip(lengths, 0, key_pages.shape[1] * page_table.shape[1])}


def sorted_starts(query_starts: ndarray, query: ndarray, **_: Any) -> Call:
    return {"query_starts": np.clip(np.sort(query_starts), 0, len(query))}


@clause(PAGED, 8, false=[given(PAGED, clipped), given(PAGED, sorted_starts)])
def lengths_and_starts_beyond_are_refused(attention: Function) -> None:
    for wrong in ([10, 5], [7, -1]):
        assert refuses(attention, "lengths: wanted", **drawn(lengths=np.array(wrong)))
    for wrong in ([0, 6, 5], [-1, 2, 5], [0, 2, 6]):
        assert refuses(attention, "query_starts: wanted", **drawn(query_starts=np.array(wrong)))


def as_narrow(found: Any, query: ndarray, **_: Any) -> Any:
    return tuple(x.astype(query.dtype) for x in found)


@clause(PAGED, 9, false=[
    given(PAGED, lambda **_: {"soft_cap": None}), given(PAGED, lambda **_: {"sink": None}),
    given(PAGED, lambda **_: {"scale": None}), answering(PAGED, as_narrow),
])  # fmt: skip
def cap_sink_and_scale_are_those_of_grouped_attention(attention: Function) -> None:
    from attnverify.catalogue.operation import CATALOGUE

    numbers = {"soft_cap": 1.5, "sink": np.array([0.5, -np.inf, 2.0, 1.0]), "scale": 0.75}
    call = drawn(lengths=np.array([9, 9]), query_starts=np.array([0, 5, 5]))
    key, value = (call[n][[4, 0, 5]].reshape(9, 2, -1) for n in ("key_pages", "value_pages"))
    heads = (x.swapaxes(0, 1)[None] for x in (call["query"], key, value))
    output, lse = attention(**call, **numbers)
    found = output.swapaxes(0, 1)[None], lse.T[None]
    assert all_close(found, spec.grouped_attention(*heads, **numbers))
    narrow = level([[1.0]], [[0]], [1])
    half = {n: x.astype(np.float16) if x.dtype == float else x for n, x in narrow.items()}
    assert close(attention(**half, sink=np.array([1000.25]))[1].item(), 1000.25, 1e-7)
    assert CATALOGUE[PAGED].dtype_of_output(1, "float16") == "float32"
