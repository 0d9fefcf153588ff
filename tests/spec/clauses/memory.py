"""Clauses of the memory."""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.spec.clauses.registry import Function, answering, clause, given

CALL = {"n_layers": 3, "mem_len": 4, "batch": 2, "width": 5}


@clause(
    "init_mems",
    1,
    false=[
        lambda n_layers, mem_len, batch, width: [np.zeros((batch, mem_len, width))] * n_layers,
        answering("init_mems", lambda mems, **_: None),
    ],
)
def a_memory_of_length_zero_is_none(init: Function) -> None:
    assert init(**CALL | {"mem_len": 0}) is None
    assert shapes(init(**CALL)) == [(2, 4, 5)] * 3


@clause("init_mems", 2, false=answering("init_mems", lambda mems, **_: mems[:1] * len(mems)))
def writing_to_one_array_changes_no_other(init: Function) -> None:
    mems = init(**CALL)
    mems[0] += 1.0
    assert mems[0].all() and not mems[1].any() and not mems[2].any()


def shapes(mems: list[ndarray] | None) -> list[tuple[int, ...]]:
    return [x.shape for x in mems or []]


def stream(first: int, end: int) -> list[ndarray]:
    """For each of two layers an array [B S F] of numbers that say layer and position."""
    place = np.arange(first, end)[None, :, None] + np.zeros((1, 1, 3))
    return [100.0 + place, 200.0 + place]


def updating(S: int, N: int, mem_len: int) -> dict[str, Any]:
    return {"hids": stream(S, S + N), "mems": stream(0, S), "mem_len": mem_len}


def equal(found: list[ndarray], wanted: list[ndarray]) -> bool:
    return [x.tolist() for x in found] == [x.tolist() for x in wanted]


def joined(hids: list[ndarray], mems: list[ndarray]) -> list[ndarray]:
    return [np.concatenate(pair, axis=1) for pair in zip(mems, hids, strict=True)]


def the_oldest(hids: Any, mems: Any, mem_len: int) -> list[ndarray]:
    return [x[:, :mem_len].copy() for x in joined(hids, mems)]


def the_segment_alone(hids: Any, mems: Any, mem_len: int) -> list[ndarray]:
    return [x[:, max(0, x.shape[1] - mem_len) :].copy() for x in hids]


def as_long_as_before(hids: Any, mems: Any, mem_len: int) -> list[ndarray]:
    S = mems[0].shape[1]
    return [x[:, max(0, x.shape[1] - min(S, mem_len)) :].copy() for x in joined(hids, mems)]


def padded(found: list[ndarray], mem_len: int, **_: Any) -> list[ndarray]:
    missing = [(0, 0), (mem_len - found[0].shape[1], 0), (0, 0)]
    return [np.pad(x, missing) for x in found]


@clause(
    "update_mems",
    1,
    false=[the_oldest, the_segment_alone, as_long_as_before, answering("update_mems", padded)],
)
def the_last_positions_of_memory_and_segment_stay(update: Function) -> None:
    for S, N, mem_len in ((2, 5, 3), (3, 5, 5), (4, 1, 4), (1, 2, 9), (0, 2, 2), (3, 2, 4)):
        kept = min(mem_len, S + N)
        assert equal(update(**updating(S, N, mem_len)), stream(S + N - kept, S + N))


def negative_slice(hids: Any, mems: Any, mem_len: int) -> list[ndarray]:
    return [x[:, -mem_len:].copy() for x in joined(hids, mems)]


@clause(
    "update_mems",
    2,
    false=[negative_slice, answering("update_mems", lambda found, **_: None)],
)
def a_length_of_zero_keeps_nothing(update: Function) -> None:
    assert shapes(update(**updating(2, 3, 0))) == [(1, 0, 3)] * 2


def from_nothing(hids: Any, mems: Any, mem_len: int) -> list[ndarray]:
    return the_segment_alone(hids, mems, mem_len)


@clause("update_mems", 3, false=from_nothing)
def no_memory_stays_none(update: Function) -> None:
    assert update(**updating(0, 3, 2) | {"mems": None}) is None


def in_place(found: list[ndarray], mems: list[ndarray], **_: Any) -> list[ndarray]:
    mems[:] = found
    return found


def overwriting(found: list[ndarray], mems: list[ndarray], **_: Any) -> list[ndarray]:
    mems[0][...] = 0.0
    return found


@clause(
    "update_mems",
    4,
    false=[
        answering("update_mems", lambda found, hids, **_: [x[:, -1:] for x in hids]),
        answering("update_mems", lambda found, mems, **_: mems),
        answering("update_mems", in_place),
        answering("update_mems", overwriting),
    ],
)
def the_result_is_no_alias_and_the_inputs_stay(update: Function) -> None:
    for S, N, mem_len in ((2, 3, 1), (2, 3, 5), (0, 1, 1), (1, 1, 1)):
        call = updating(S, N, mem_len)
        arrays = [*call["hids"], *call["mems"]]
        before = [id(x) for x in arrays]
        new = update(**call)
        assert not any(np.shares_memory(x, y) for x in new for y in arrays)
        assert [id(x) for x in (*call["hids"], *call["mems"])] == before
        assert equal(arrays, [*stream(S, S + N), *stream(0, S)])


def arriving(S: int, N: int, mem_len: int) -> dict[str, Any]:
    ones = [np.ones((1, min(mem_len, S + N), 3))] * 2
    return {"d_new_mems": ones} | updating(S, N, mem_len)


def handing_on(d_new_mems: Any, hids: Any, mems: Any, mem_len: int) -> Any:
    """Twin: the gradient of the concatenation."""
    S, kept = mems[0].shape[1], d_new_mems[0].shape[1]
    whole = [np.pad(d, ((0, 0), (S + hids[0].shape[1] - kept, 0), (0, 0))) for d in d_new_mems]
    return [d[:, S:] for d in whole], [d[:, :S] for d in whole]


@clause("update_mems", 4, by="update_mems_grad", false=handing_on)
@clause(
    "update_mems_grad",
    1,
    false=[
        handing_on,
        given("update_mems_grad", lambda hids, mems, **_: {"hids": mems, "mems": hids}),
    ],
)
def what_arrives_at_the_new_memory_goes_nowhere(gradient: Function) -> None:
    for S, N, mem_len in ((2, 3, 4), (2, 3, 1), (3, 1, 9)):
        d_hids, d_mems = gradient(**arriving(S, N, mem_len))
        assert shapes(d_hids) == [(1, N, 3)] * 2
        assert shapes(d_mems) == [(1, S, 3)] * 2
        assert not any(x.any() for x in (*d_hids, *d_mems))


@clause(
    "update_mems_grad",
    2,
    false=answering("update_mems_grad", lambda found, mems, **_: found if mems else (*found, None)),
)
def without_a_memory_the_hidden_states_alone_have_a_gradient(gradient: Function) -> None:
    found = gradient(**arriving(0, 3, 2) | {"mems": None, "d_new_mems": None})
    assert len(found) == 1 and equal(found[0], [0 * x for x in stream(0, 3)])
    assert len(gradient(**arriving(2, 3, 2))) == 2
