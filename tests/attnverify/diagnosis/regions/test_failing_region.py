"""
A found failure is generalised to the region where it shows: known regions are found again, chance
ones are not offered.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from attnverify import numpy_ref as right
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.regions.condition_search import (
    candidates,
    find_conjunction,
    shortest_conjunction,
)
from attnverify.diagnosis.regions.failing_region import RegionOffer
from attnverify.failures.known_failures import KnownFailure, parse_line
from attnverify.inputs.conditions import parse_condition
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import CellResult, Options
from tests.support.sample_backends import load_sample

pytestmark = [
    pytest.mark.xdist_group("failing regions"),
    pytest.mark.usefixtures("causes_are_not_sought"),
]
"""
One worker runs all of them: each fault that several tests look at is judged once, its region told
and not its cause.
"""

Function = Callable[..., Any]


def plain_series(query: Any, key: Any, value: Any, visible: Any = None) -> Any:
    """Slopes of a geometric series whatever the number of heads."""
    H, N, M = query.shape[1], query.shape[2], key.shape[2]
    distance = np.arange(M) - np.arange(M - N, M)[:, None]
    seen = (distance <= 0) if visible is None else (distance <= 0) & visible
    slopes = 2 ** (-8 * np.arange(1, H + 1) / H)
    return attended(
        query,
        key,
        value,
        np.broadcast_to(seen, (*query.shape[:2], N, M)),
        slopes[:, None, None] * distance,
    )


def attended(query: Any, key: Any, value: Any, seen: Any, bias: Any = 0.0) -> Any:
    absent = ~seen.any(axis=-2)[..., None]
    key, value = (
        np.where(absent, 0.0, key.astype(float)),
        np.where(absent, 0.0, value.astype(float)),
    )
    score = query.astype(float) @ key.mT / query.shape[-1] ** 0.5 + bias
    return (right.softmax(score, seen) @ value).astype(query.dtype)


def top_left(query: Any, key: Any, value: Any, visible: Any = None) -> Any:
    """A causal mask that starts at the first key."""
    N, M = query.shape[2], key.shape[2]
    seen = np.tri(N, M, dtype=bool) if visible is None else np.tri(N, M, dtype=bool) & visible
    distance = np.arange(M) - np.arange(M - N, M)[:, None]
    bias = right.get_slopes(query.shape[1])[:, None, None] * distance
    return attended(query, key, value, np.broadcast_to(seen, (*query.shape[:2], N, M)), bias)


def blind_nan(score: Any, mask: Any = None) -> Any:
    weights = right.softmax(score, mask)
    return np.where(weights.any(axis=-1, keepdims=True), weights, weights.dtype.type(np.nan))


def wide_heads(query: Any, key: Any, value: Any, visible: Any = None) -> Any:
    """A kernel that reads 64 numbers of each head."""
    scale = np.sqrt(64 / max(query.shape[-1], 64)).astype(query.dtype)
    return right.alibi_attention(query[..., :64] * scale, key[..., :64], value, visible)


def ignores_strides(x: Any) -> Any:
    """A kernel that reads memory as if it were contiguous, where the last axis is not."""
    contiguous = x.strides[-1] in (x.itemsize, -x.itemsize) or x.shape[-1] == 1
    return right.shift_right(x if contiguous else x * 2)


def float_masks(score: Any, mask: Any = None) -> Any:
    """A float mask is read as a boolean one."""
    return right.softmax(score, mask if mask is None or mask.dtype == bool else mask > -np.inf)


def key_tail(query: Any, key: Any, value: Any, visible: Any = None) -> Any:
    """Keys are read in tiles of 16, and a last tile of one key is forgotten."""
    N, M = query.shape[2], key.shape[2]
    tail = np.arange(M) < M - (M % 16 == 1 and M > 1)
    seen = np.broadcast_to(tail, (N, M)) if visible is None else visible & tail
    return right.alibi_attention(query, key, value, seen)


def user_implementation(operation: str, function: Function) -> Implementation:
    def implementation(**arguments: Any) -> Any:
        return function(**arguments)

    backend = load_sample("one_fault_each")
    return Implementation(backend, CATALOGUE[operation], function.__name__, implementation)


def judged(
    operation: str, function: Function, folder: str, dtype: str = "float32", seed: int = 0,
        profile: str = "default",
    known: tuple[KnownFailure, ...] = (),
) -> CellResult:  # fmt: skip
    return judge_cell(
        Cell(user_implementation(operation, function), None, dtype, "values"),
        Options(profile, seed, folder),
        known,
    )


REGIONS: dict[str, tuple[str, Function, set[str]]] = {
    "plain series": ("alibi_attention", plain_series, {"H is no power of two"}),
    "top left": ("alibi_attention", top_left, {"N != M"}),
    "blind rows": ("softmax", blind_nan, {"a row sees no key"}),
    "wide heads": ("alibi_attention", wide_heads, {"D > 64"}),
    "strides": (
        "shift_right",
        ignores_strides,
        {f"{name} is strided along its last axis" for name in ("an input", "x")},
    ),
    "float masks": ("softmax", float_masks, {"a float mask is given"}),
    "key tail": ("alibi_attention", key_tail, {"M % 16 == 1"}),
}


@lru_cache
def of_a_fault(name: str) -> CellResult:
    operation, function, _ = REGIONS[name]
    with TemporaryDirectory() as folder:
        return judged(operation, function, folder)


def offered(tally: CellResult) -> tuple[KnownFailure, ...]:
    """The lines of a tally, as they would be read from the file."""
    return tuple(
        parse_line(line.replace("<reason>", "[nonconformance] told by a test"), line)
        for line in offers(tally)
    )


def offers(tally: CellResult) -> list[str]:
    return [finding.offer.line for finding in tally.findings if finding.offer]


@pytest.mark.parametrize("name", REGIONS)
def test_the_region_of_a_fault_is_found(name: str) -> None:
    tally = of_a_fault(name)
    assert any(REGIONS[name][2] & set(str(line.when).split(" and ")) for line in offered(tally)), (
        tally.findings
    )
    assert all(f"  known failures: {line}  (covers " in tally.reason for line in offers(tally))


@pytest.mark.parametrize("name", ["plain series", "blind rows", "wide heads"])
def test_the_offered_line_makes_another_run_known(name: str, tmp_path: Path) -> None:
    operation, function, _ = REGIONS[name]
    again = judged(operation, function, str(tmp_path), seed=11, known=offered(of_a_fault(name)))
    assert (again.verdict, again.kind) == ("known failure", "nonconformance"), again.reason
    assert again.cases > 0


@pytest.mark.parametrize("name", REGIONS)
def test_a_finding_names_the_region(name: str) -> None:
    found = of_a_fault(name).findings
    assert found and all(finding.condition for finding in found)
    assert all(" when " in finding.symptom for finding in found)


def test_what_fails_everywhere_is_offered_without_a_region(tmp_path: Path) -> None:
    tally = judged("softmax", lambda score, mask=None: np.full_like(score, 2), str(tmp_path))
    assert {line.split(" : ")[0] for line in offers(tally)} == {"softmax_<lambda> * values"}


def test_a_fault_of_one_dtype_is_offered_for_that_dtype(tmp_path: Path) -> None:
    def coarse(score: Any, mask: Any = None) -> Any:
        weights = right.softmax(score, mask)
        return weights * weights.dtype.type(1.01 if weights.dtype == np.float16 else 1)

    assert [
        line.dtype for line in offered(judged("softmax", coarse, str(tmp_path), dtype="float16"))
    ] == ["float16"]


def test_chance_is_not_offered(tmp_path: Path) -> None:
    """
    Two failures among a hundred passes have dozens of conditions in common; the crossed cases leave
    the one that is the cause.
    """

    def rare(score: Any, mask: Any = None) -> Any:
        return right.softmax(score, mask) * score.dtype.type(1 + (score.shape[-1] == 13))

    tally = judged("softmax", rare, str(tmp_path))
    assert [line.when for line in offered(tally)] == ["M == 13"]


# Separation


def sized(**sizes: int) -> Case:
    recipe = Recipe(
        "scaled_dot_product_attention",
        {"B": 1, "H": 1, "E": 2} | sizes,
        {"family": "normal", "seed": 1},
    )
    return case_of(recipe, "float32")


def test_the_plainest_of_equally_good_conditions_is_taken() -> None:
    failing = [sized(N=n, M=m, D=4) for n, m in ((3, 2), (9, 4), (17, 1), (6, 5), (8, 7))]
    passing = [
        sized(N=n, M=m, D=4)
        for n, m in ((2, 3), (4, 9), (5, 5), (2, 2), (7, 8), (1, 17), (3, 3), (1, 1))
    ]
    assert find_conjunction(failing, passing) == ("N > M",)


def test_two_conditions_are_joined_where_one_does_not_do() -> None:
    every = [
        sized(N=n, M=m, D=d)
        for n, m in ((3, 2), (9, 4), (2, 3), (4, 9), (5, 5), (7, 6))
        for d in (4, 16, 64, 80, 96, 128)
    ]
    sizes = {case: case.recipe.sizes for case in every}
    failing = [c for c in every if sizes[c]["N"] > sizes[c]["M"] and sizes[c]["D"] > 64]
    assert set(find_conjunction(failing, [c for c in every if c not in failing])) == {
        "N > M",
        "D > 64",
    }


def test_widths_that_differ_are_told_before_what_fails_by_chance() -> None:
    """A kernel with one width for query and value, met in few cases, all of them with H = 3."""
    failing = [sized(H=3, N=n, M=17, D=16, E=17) for n in (3, 9, 17)]
    passing = [sized(H=h, N=n, M=17, D=16, E=16) for h in (1, 2, 4, 8) for n in (3, 9, 17)]
    assert find_conjunction(failing, passing) == ("D != E",)


def test_without_passes_there_is_no_condition() -> None:
    assert find_conjunction([sized(N=1, M=1, D=1)], []) == ()


def test_a_condition_that_keeps_one_pass_of_many_out_does_not_pay() -> None:
    assert shortest_conjunction({(1 << 29) - 1: (6, "N < 128")}, failing=40, passing=30) == ()
    assert shortest_conjunction({0: (6, "N < 128")}, failing=40, passing=30) == ("N < 128",)


def test_an_offer_that_the_fresh_draws_refute_does_not_hold() -> None:
    offer = RegionOffer(("N > M",), (5, 5), (0, 9), (3, 4), (0, 8), "*")
    assert not offer.holds and replace(offer, fresh_failures=(4, 4)).holds
    assert not replace(offer, fresh_failures=(4, 4), fresh_passes=(1, 8)).holds
    known = replace(offer, fresh_failures=(4, 4), passes=(1, 8), fresh_passes=(1, 8))
    assert known.holds and not replace(known, fresh_passes=(3, 4)).holds


def test_what_is_not_given_is_said_in_words() -> None:
    cases = [
        case_of(r, "float32") for r in draw_recipes("scaled_dot_product_attention", "any", 60, 0)
    ]
    for part in ("mask", "dropout"):
        failing = [case for case in cases if getattr(case.recipe, part) is None]
        passing = [case for case in cases if case not in failing]
        assert find_conjunction(failing, passing) == (f"no {part} is given",)
        assert not [text for _, text in candidates(failing, passing) if "None" in text]


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (lambda window: window is not None, "window is given"),
        (lambda window: window is not None and None in window, "one side of window is None"),
    ],
)
def test_a_region_may_be_that_of_an_option(fails: Callable[[Any], bool], told: str) -> None:
    recipes = draw_recipes("grouped_attention", "any", 60, 0)
    cases = [case_of(recipe, "float32") for recipe in recipes]
    sides: dict[bool, list[Case]] = {True: [], False: []}
    for case in cases:
        sides[fails(case.recipe.options.get("window"))].append(case)
    assert find_conjunction(sides[True], sides[False]) == (told,)
    names = {
        text.partition(" is ")[0] for _, text in candidates(cases, cases) if "expanded" in text
    }
    assert "window" not in names, "two numbers lie nowhere in memory"


@pytest.mark.parametrize(
    ("kind", "has_gaps"),
    [("contiguous", False), ("offset", False), ("packed", True), ("transposed", True)],
)
def test_what_is_not_contiguous_is_a_condition(kind: str, has_gaps: bool) -> None:
    recipe = draw_recipes("scaled_dot_product_attention", "any", 1, 0)[0]
    sizes = recipe.sizes | {"B": 2, "H": 3, "N": 5, "D": 4}
    case = case_of(replace(recipe, sizes=sizes, layout={"kind": kind, "seed": 0}), "float32")
    assert parse_condition("query is not contiguous")(case) is has_gaps


def test_an_array_is_named_where_others_lie_otherwise_alone() -> None:
    """Where all inputs are laid out alike, no draw has told which of them matters."""
    recipe = draw_recipes("scaled_dot_product_attention", "any", 1, 0)[0]
    for kind, tells in (("transposed", False), ("mixed", True)):
        case = case_of(replace(recipe, layout={"kind": kind, "seed": 0}), "float32")
        texts = {text for _, text in candidates([case], [case])}
        assert ("key is not contiguous" in texts) is tells
        assert "an input is not contiguous" in texts
