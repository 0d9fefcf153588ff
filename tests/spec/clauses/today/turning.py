"""Clauses of rotary positions."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.catalogue.operation import CATALOGUE
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import close

ROTARY, BACK = "rotary_embedding", "rotary_embedding_grad"
Call = dict[str, Any]


def drawn(D: int = 6, N: int = 3, B: int = 1, H: int = 2, **more: Any) -> Call:
    rng = np.random.default_rng(D + N)
    at = np.arange(5, 5 + B * N).reshape(B, N)
    return {"x": rng.standard_normal((B, H, N, D)), "positions": at, "pairing": "halves"} | more


def unit(channel: int, D: int = 6, **more: Any) -> Call:
    """One row at position 1 with a 1 in one channel."""
    x = np.eye(D)[channel].reshape(1, 1, 1, D)
    return {"x": x, "positions": np.array([[1]]), "pairing": "halves"} | more


def exchanged(pairing: str, **_: Any) -> Call:
    return {"pairing": {"halves": "interleaved", "interleaved": "halves"}.get(pairing, "halves")}


def with_default(pairing: str = "halves", **call: Any) -> Any:
    """Twin: another word for a pairing is taken for the halves."""
    known = pairing if pairing == "interleaved" else "halves"
    return spec.rotary_embedding(**call, pairing=known)


@clause(ROTARY, 1, false=[given(ROTARY, exchanged), with_default])
def a_pair_is_of_two_halves_or_of_neighbours(rotary: Function) -> None:
    for pairing, partners in (("halves", [(0, 3), (2, 5)]), ("interleaved", [(0, 1), (4, 5)])):
        for pair in partners:
            for channel in pair:
                y = rotary(**unit(channel, pairing=pairing)).ravel()
                assert tuple(np.flatnonzero(y)) == pair
    for odd in ("half", None, "neox"):
        assert refuses(rotary, "pairing: wanted", **unit(0, pairing=odd))


def all_turn(x: ndarray, **_: Any) -> Call:
    return {"rotary_dim": x.shape[-1] // 2 * 2}


def of_all_channels(x: ndarray, rotary_dim: int | None = None, **_: Any) -> Call:
    """Twin: exponents counted in D."""
    R = (x.shape[-1] if rotary_dim is None else rotary_dim) // 2
    return {"frequencies": 10000.0 ** (-2 * np.arange(R) / x.shape[-1])}


@clause(ROTARY, 2, false=[given(ROTARY, all_turn), given(ROTARY, of_all_channels)])
def the_first_channels_turn_as_if_they_were_alone(rotary: Function) -> None:
    for pairing in ("halves", "interleaved"):
        call = drawn(D=9, rotary_dim=4, pairing=pairing)
        y = rotary(**call)
        assert (y[..., 4:] == call["x"][..., 4:]).all()
        alone = call | {"x": call["x"][..., :4], "rotary_dim": None}
        assert close(y[..., :4], rotary(**alone))
    for wrong in (None, 3, 0, 10):
        assert refuses(rotary, "rotary_dim: wanted", **drawn(D=9, rotary_dim=wrong))


def in_float32(positions: ndarray, **call: Any) -> Any:
    """Twin: angles of 24 bits."""
    R = call["x"].shape[-1] // 2
    f = 10000.0 ** (-np.arange(R) / R)
    angle = (positions[..., None].astype(np.float32) * f.astype(np.float32)).astype(float)
    a, c = call["x"][..., :R], call["x"][..., R:]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate([a * cos - c * sin, a * sin + c * cos], -1)


@clause(
    ROTARY,
    3,
    false=[
        in_float32,
        given(ROTARY, lambda positions, **_: {"positions": np.clip(positions, 0, None)}),
        given(ROTARY, lambda positions, **_: {"positions": np.clip(positions, -8191, 8191)}),
    ],
)
def the_angle_is_that_of_the_exact_integer(rotary: Function) -> None:
    for p in (-(2**20), -3, 7, 4097, 2**20 - 1):
        y = rotary(**unit(1, D=4, positions=np.array([[p]]))).ravel()
        angle = p / 100.0
        assert close(y, [0, np.cos(angle), 0, np.sin(angle)], 1e-10)


def one_further(positions: ndarray, **_: Any) -> Call:
    return {"positions": positions + 1}


def small_for_zero(frequencies: Any = None, **_: Any) -> Call:
    """Twin: a frequency of 0 taken for one that is not given."""
    return {"frequencies": None if frequencies is None or not frequencies.all() else frequencies}


@clause(ROTARY, 4, false=[given(ROTARY, one_further), given(ROTARY, small_for_zero)])
def an_angle_of_0_changes_nothing(rotary: Function) -> None:
    x = np.array([1e-300, -3.0, 1e300, 0.1]).reshape(1, 1, 1, 4)
    for pairing in ("halves", "interleaved"):
        at = {"x": x, "pairing": pairing}
        assert (rotary(**at, positions=np.array([[0]])) == x).all()
        still = rotary(**at, positions=np.array([[9]]), frequencies=np.zeros(2))
        assert (still == x).all()


def times_the_base(x: ndarray, base: float = 1e4, frequencies: Any = None, **_: Any) -> Call:
    """Twin: given frequencies multiplied by the base's."""
    R = x.shape[-1] // 2
    own = base ** (-np.arange(R) / R)
    return {"frequencies": own if frequencies is None else frequencies * own}


@clause(
    ROTARY,
    5,
    false=[given(ROTARY, lambda **_: {"frequencies": None}), given(ROTARY, times_the_base)],
)
def given_frequencies_stand_in_place_of_the_bases(rotary: Function) -> None:
    f = np.array([0.3, -2.0, 0.0])
    call = drawn(frequencies=f)
    y = rotary(**call)
    assert close(y, rotary(**call, base=7.0))
    angle = call["positions"][:, None, :, None] * f
    a, c = call["x"][..., :3], call["x"][..., 3:]
    assert close(y[..., :3], a * np.cos(angle) - c * np.sin(angle))
    assert refuses(rotary, "frequencies: wanted", **drawn(frequencies=np.ones(2)))


def first_entry(positions: ndarray, **_: Any) -> Call:
    return {"positions": np.broadcast_to(positions[:1], positions.shape)}


def following(positions: ndarray, **_: Any) -> Call:
    """Twin: positions that follow each other."""
    return {"positions": positions[:, :1] + np.arange(positions.shape[1])}


@clause(ROTARY, 6, false=[given(ROTARY, first_entry), given(ROTARY, following)])
def each_row_has_its_own_position(rotary: Function) -> None:
    call = drawn(B=2, N=4, positions=np.array([[9, 2, 2, 0], [-4, 1, 7, 300]]))
    y = rotary(**call)
    for b, i in np.ndindex(2, 4):
        row = {"x": call["x"][b : b + 1, :, i : i + 1]}
        at = {"positions": call["positions"][b : b + 1, i : i + 1]}
        assert close(y[b : b + 1, :, i : i + 1], rotary(**call | row | at))


def reflected(positions: ndarray, x: ndarray, **more: Any) -> Any:
    """Twin: the second channels turned the other way."""
    y = spec.rotary_embedding(x=x, positions=positions, **more)
    R = x.shape[-1] // 2
    return np.concatenate([y[..., :R], -y[..., R:]], -1)


def absolute(positions: ndarray, **_: Any) -> Call:
    return {"positions": positions * positions}


@clause(ROTARY, 7, false=[reflected, given(ROTARY, absolute)])
def differences_of_positions_are_all_that_counts(rotary: Function) -> None:
    call = drawn(N=2)
    back = rotary(**call | {"x": rotary(**call), "positions": -call["positions"]})
    assert close(back, call["x"])
    for far in (0, 100, -31):
        q, k = (
            rotary(**call | {"x": call["x"][:, :, i : i + 1], "positions": np.array([[far + p]])})
            for i, p in ((0, 7), (1, 4))
        )
        product = (q * k).sum()
        if far == 0:
            first = product
        assert close(product, first)


def narrowed(x: ndarray, frequencies: Any = None, **more: Any) -> Any:
    """Twin: frequencies in the format of x."""
    f = frequencies.astype(x.dtype).astype(float)
    return spec.rotary_embedding(x=x, frequencies=f, **more)


@clause(ROTARY, 8, false=narrowed)
def a_frequency_beside_half_numbers_is_no_half(rotary: Function) -> None:
    f = np.array([0.3], np.float32)
    call = unit(0, D=2, positions=np.array([[1000]]), frequencies=f)
    y = rotary(**call | {"x": call["x"].astype(np.float16)})
    assert close(y.ravel(), [np.cos(1000 * float(f[0])), np.sin(1000 * float(f[0]))], 1e-3)
    assert CATALOGUE[ROTARY].dtype_of("frequencies", "float16") == "float32"
    assert CATALOGUE[BACK].dtype_of_output(1, "bfloat16") == "float32"
    assert CATALOGUE[BACK].dtype_of_output(0, "bfloat16") == "bfloat16"


def arriving(**more: Any) -> Call:
    call = drawn(**more)
    rng = np.random.default_rng(3)
    return {"d_output": rng.standard_normal(call["x"].shape)} | call


def forwards(found: Any, d_output: ndarray, x: ndarray, **more: Any) -> Any:
    """Twin: a gradient turned as the numbers were."""
    return (spec.rotary_embedding(d_output, **more), *found[1:])


def rest_lost(found: Any, rotary_dim: Any = None, **_: Any) -> Any:
    d_x = found[0].copy()
    d_x[..., rotary_dim:] = 0
    return (d_x, *found[1:])


@clause(BACK, 1, false=[answering(BACK, forwards), answering(BACK, rest_lost)])
def what_arrives_is_turned_back(gradient: Function) -> None:
    for pairing in ("halves", "interleaved"):
        call = arriving(D=7, rotary_dim=4, pairing=pairing)
        found = gradient(**call)
        assert len(found) == 1
        d_output, forward = call["d_output"], {k: v for k, v in call.items() if k != "d_output"}
        assert close(spec.rotary_embedding(**forward | {"x": found[0]}), d_output)
        assert (found[0][..., 4:] == d_output[..., 4:]).all()


def unweighted(d_output: ndarray, positions: ndarray, frequencies: ndarray, **call: Any) -> Any:
    """Twin: rows that count alike, whatever their positions."""
    one = np.ones_like(positions)
    same = call | {"frequencies": np.zeros_like(frequencies)}
    d_x, _ = spec.rotary_embedding_grad(
        d_output, positions=positions, frequencies=frequencies, **call
    )
    return d_x, spec.rotary_embedding_grad(d_output, positions=one, **same)[1]


def none_of_still(found: Any, frequencies: ndarray, **_: Any) -> Any:
    """Twin: nothing for a frequency of 0."""
    return found[0], np.where(frequencies == 0, 0.0, found[1])


@clause(BACK, 2, false=[unweighted, answering(BACK, none_of_still)])
def a_frequency_receives_of_each_row_by_its_position(gradient: Function) -> None:
    call = arriving(N=2, positions=np.array([[0, 4]]), frequencies=np.array([0.0, 0.1, 2.0]))
    _, d_f = gradient(**call)
    cut = {name: call[name][:, :, 1:] for name in ("d_output", "x")}
    assert close(d_f, gradient(**call | cut | {"positions": np.array([[4]])})[1])
    a, c, da, dc = (x[0, :, 1, at] for x in (call["x"], call["d_output"]) for at in (0, 3))
    assert close(d_f[0], 4 * (dc * a - da * c).sum()) and abs(d_f[0]) > 0.1
