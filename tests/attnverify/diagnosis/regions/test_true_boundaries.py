"""
Kernels that are wrong from a size on: the size is told as it is, with the calls that have shown it,
or nothing is told of sizes.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify import numpy_ref as right
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.regions.boundaries import (
    describe_tried,
    is_withstood,
    middle,
    next_question,
)
from attnverify.diagnosis.tiles.scores import tile_mistakes
from attnverify.failures.finding import Finding
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of
from attnverify.reference.staged_attention import evaluate, spec_stages
from attnverify.verdicts import findings
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import Options
from tests.support.sample_backends import load_sample

Sizes = dict[str, int]

KERNELS: dict[str, tuple[Callable[[Sizes], bool], str, str]] = {
    "a second tile": (lambda s: s["M"] > 16, "M > 16", "M = 16 passed, M = 17 failed"),
    "one tile": (lambda s: s["M"] <= 16, "M <= 16", "M = 17 passed, M = 16 failed"),
    "long rows": (lambda s: s["M"] >= 129, "M > 128", "M = 128 passed, M = 129 failed"),
    "no round number": (lambda s: s["M"] > 100, "M > 100", "M = 100 passed, M = 101 failed"),
    "wide heads": (lambda s: s["D"] >= 64, "D >= 64", "D = 63 passed, D = 64 failed"),
    "wide values": (lambda s: s["E"] > 24, "E > 24", "E = 24 passed, E = 25 failed"),
    "longer queries": (lambda s: s["N"] > s["M"], "N > M", "passed"),
    "unlike widths": (lambda s: s["D"] != s["E"], "D != E", "passed"),
    "odd heads": (lambda s: s["H"] % 2 == 1, "H % 2 != 0", "H = 2 and 4 passed"),
    "many heads": (lambda s: s["H"] > 4, "H > 4", "H = 4 passed, H = 5 failed"),
    "a large grid": (lambda s: s["B"] * s["H"] >= 16, "B*H >= 16", "passed, B=16 H=1 failed"),
    "a tail of rows": (lambda s: s["N"] % 16 != 0, "N % 16 != 0", "N = 16 and 32"),
    "a tail of keys": (lambda s: s["M"] % 32 != 0, "M % 32 != 0", "M = 32 and 64"),
    "few rows": (lambda s: s["N"] < 8, "N < 8", "N = 8 passed, N = 7 failed"),
    "one row": (lambda s: s["N"] == 1, "N == 1", "N = 2 passed, N = 1 failed"),
    "one size": (lambda s: s["M"] == 17, "M == 17", "M = 17 failed"),
    "two sizes": (
        lambda s: s["M"] > 6 and s["D"] > 12,
        "D > 12 and M > 6",
        "D = 12 passed, D = 13 failed",
    ),
}
"""In which calls a kernel is wrong, what must be told, and what of that which was tried."""


PLACES: dict[str, tuple[Any, str, str]] = {
    "last row": (np.s_[:, :, -1:], "in the last row", "head"),
    "first head": (np.s_[:, :1], "in head 0 alone", "last row"),
    "last column": (np.s_[..., -1:], "in the last column", "last row"),
    "rows from 16 on": (np.s_[:, :, 16:], "", "alone"),
    "odd heads": (np.s_[:, 1::2], "", r"\bin .*head|head \d"),
    "all entries but the first": (np.s_[1:], "", "batch element"),
}
"""Where a kernel is wrong, what must be told, and what must not."""


def wrong_when(is_wrong: Callable[[Sizes], bool], where: Any = ...) -> Implementation:
    """Attention to which noise is added in some calls, or in some places of all."""

    def kernel(query: Any, key: Any, value: Any, mask: Any = None, keep: Any = None, p: Any = 0.0):  # type: ignore[no-untyped-def]
        out = right.scaled_dot_product_attention(query, key, value, mask, keep, p)
        B, H, N, D = query.shape
        if is_wrong({"B": B, "H": H, "N": N, "D": D, "M": key.shape[2], "E": value.shape[3]}):
            out = np.array(out)
            out[where] += np.random.default_rng(D + N).standard_normal(out[where].shape)
        return out

    def implementation(**arguments: Any) -> Any:
        return kernel(**arguments)

    operation = CATALOGUE["scaled_dot_product_attention"]
    return Implementation(load_sample("one_fault_each"), operation, "kernel", implementation)


def found_in(is_wrong: Callable[[Sizes], bool], folder: Path, where: Any = ...) -> list[Finding]:
    cell = Cell(wrong_when(is_wrong, where), None, "float32", "values")
    return list(judge_cell(cell, Options("quick", 0, str(folder)), ()).findings)


DIAGNOSED = ("one tile", "two sizes")
"""Noise has no cause. That none is found, in most of the time of a run, is seen of these alone."""


@pytest.mark.parametrize("name", KERNELS)
def test_the_true_boundary_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in DIAGNOSED:
        monkeypatch.setattr(findings, "diagnose", lambda *_, **__: None)
    is_wrong, told, tried = KERNELS[name]
    found = found_in(is_wrong, tmp_path)
    assert {" and ".join(finding.condition) for finding in found} == {told}
    for finding in found:
        assert tried in finding.held
        assert ", 0 of " in finding.held, "no case passed of which the conditions hold"


@pytest.mark.parametrize("name", PLACES)
def test_a_place_is_told_that_all_failing_cases_share(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held against no candidate: that noise is none of them is seen of two kernels above."""
    monkeypatch.setattr(findings, "diagnose", partial(diagnose, among=[]))
    where, told, not_told = PLACES[name]
    found = found_in(lambda s: True, tmp_path, where)
    cause = next(str(one.cause) for one in found if one.kind == "wrong number")
    assert told in cause
    assert not re.search(not_told, cause.partition(" (seen with")[0])


def test_sizes_that_nothing_compares_are_not_told(
    tmp_path: Path, causes_are_not_sought: None
) -> None:
    """It fails by what stands in the query, and the few cases have sizes in common."""
    for finding in found_in(lambda s: (s["D"] * 7 + s["N"] * 5 + s["M"] * 3) % 11 == 0, tmp_path):
        assert not finding.condition, finding.symptom


def sized(**sizes: int) -> Case:
    given = {"B": 1, "H": 1, "D": 2, "E": 2, "N": 3, "M": 5} | sizes
    values = {"family": "normal", "seed": 1}
    return case_of(Recipe("scaled_dot_product_attention", given, values), "float32")


def test_what_was_tried_differs_in_that_size_alone() -> None:
    assert describe_tried("M > 16", [sized(M=17)], [sized(M=16)]) == "M = 16 passed, M = 17 failed"
    assert describe_tried("M > 16", [sized(M=17)], [sized(M=16, D=3)]) == ""
    assert describe_tried("M > 16", [sized(M=64)], [sized(M=16)]).endswith("was not tried")


def test_powers_of_two_are_tried_first() -> None:
    assert [middle(17, 1024), middle(63, 129), middle(64, 128), middle(70, 90)] == [
        128,
        128,
        65,
        80,
    ]


def in_tiles_of_32(**given: Any) -> Any:
    """An online softmax that forgets to rescale: wrong where a later tile has the maximum."""
    inputs = {name: x for name, x in given.items() if x is not None}
    operation = CATALOGUE["scaled_dot_product_attention"]
    change = dict(tile_mistakes())["nothing rescaled when the maximum rises, in tiles of 32 keys"]
    return evaluate(change(spec_stages(operation, inputs, "float32"))).astype(np.float32)


def test_an_edge_that_hangs_on_numbers_too_is_not_told_of_one_draw(tmp_path: Path) -> None:
    operation = CATALOGUE["scaled_dot_product_attention"]
    backend = load_sample("one_fault_each")
    faulty = Implementation(backend, operation, "kernel", lambda **given: in_tiles_of_32(**given))
    cell = Cell(faulty, None, "float32", "values")
    findings = list(judge_cell(cell, Options("quick", 0, str(tmp_path)), ()).findings)
    told = {" and ".join(finding.condition or ()) for finding in findings}
    assert findings and told <= {"M > 32", ""}, told


@pytest.mark.parametrize("text", ["M == 17", "M != 17"])
def test_both_neighbours_of_one_size_are_asked(text: str) -> None:
    asked = next_question([text], [sized(M=17)], [])
    assert {16, 18} <= {case.recipe.sizes["M"] for case in asked}


def test_what_passes_beside_an_edge_is_asked_with_other_numbers_and_more_rows() -> None:
    asked = [*next_question(["M > 16"], [sized(M=17)], [sized(M=16)])]
    beyond = {(c.recipe.values["family"], c.recipe.sizes["N"]) for c in asked}
    assert beyond == {("normal", 12), ("spotlight", 12)}
    few = [sized(M=16), asked[0]]
    assert not is_withstood("M > 16", ["M > 16"], few)
    assert is_withstood("M > 16", ["M > 16"], [*few, asked[1]])
    assert not is_withstood("M > 16", ["M > 16", "D > 2"], [*few, asked[1]])
