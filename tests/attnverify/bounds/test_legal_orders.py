"""
No legal order of evaluation exceeds its bound, in any dtype, on inputs that are searched for that;
and what is not declared does.
"""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from attnverify import ROOT
from attnverify.bounds import BOUNDS, bound
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.derived import today
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.precision import DTYPES, resolve
from attnverify.reference.oracle import evaluate_spec
from tests import rounding_variants
from tests.rounding_variants import compute, largest_share, share_of_bound
from tests.rounding_variants.cases import case_from, draw_case, neighbour, small_inputs
from tests.rounding_variants.grammar import ALTERNATIVES, CHOICES, Derivation, alternatives, derive
from tests.rounding_variants.machine import Machine
from tests.rounding_variants.search import DRAWS, File, Search, main

BY_HAND = [name for name in BOUNDS if name not in today.BOUNDS]
"""Those that are derived: tests/attnverify/derived/test_todays_bounds.py."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", BY_HAND)
def test_no_legal_order_of_evaluation_exceeds_the_bound(operation: str, dtype: str) -> None:
    search = Search(operation, dtype, seed=1).go_on(40)
    assert search.share <= 1, search.best


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", BY_HAND)
def test_a_longer_search_finds_none_either(operation: str, dtype: str) -> None:
    search = Search(operation, dtype, seed=2).go_on(1000)
    assert search.share <= 1, search.best


EXCEEDED_BEFORE = json.loads(
    (Path(rounding_variants.__file__).parent / "exceeded_before.json").read_text()
)


@pytest.mark.parametrize("told", EXCEEDED_BEFORE, ids=lambda told: told["what"])
def test_what_exceeded_an_earlier_bound_is_legal(told: dict[str, Any]) -> None:
    """Each was accused, by `share before` times the bound of the time, until a term was derived."""
    case = case_from(told)
    assert told["share before"] > 1
    assert share_of_bound(case.derived, case.inputs(told["dtype"]), told["dtype"]) <= 1


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        ("scaled_dot_product_score", "float16"),
        ("scaled_dot_product_score", "bfloat16"),
        ("dropout", "float16"),
    ],
)
def test_where_the_output_is_rounded_once_the_bound_is_reached(operation: str, dtype: str) -> None:
    assert Search(operation, dtype, seed=3).go_on(3000, until=0.985).share >= 0.985


# what is not declared exceeds the bound of what is


def share_without(derived: Derivation, name: str, inputs: dict[str, Any], dtype: str) -> float:
    """The share of a bound that does not know of one declared field."""
    known, preset = Machine.of(derived, dtype).P, derived.declaration(dtype)["preset"]
    usual = resolve(preset, derived.operation, derived.operation, dtype)
    P = replace(known, **{name: getattr(usual, name)})
    expected = evaluate_spec(CATALOGUE[derived.operation], inputs)
    trees = compute(derived, inputs, dtype), expected, bound(derived.operation, inputs, P)
    with np.errstate(all="ignore"):
        return max(largest_share(*each) for each in zip(*map(leaves, trees), strict=True))


ATTENTION = "scaled_dot_product_attention"


@pytest.mark.parametrize(
    ("field", "dtype", "operation", "arithmetic", "chosen"),
    [
        ("operand", "float32", ATTENTION, "tf32", {}),
        ("acc", "bfloat16", ATTENTION, "narrow sums", {}),
        ("partial", "bfloat16", "scaled_dot_product_score", "narrow parts", {}),
        ("grad_partial", "float16", "alibi_attention_grad", "narrow blocks", {}),
        ("acc_unit", "float32", "scaled_dot_product_score", "cut sums", {"sums": "forward"}),
        ("tanh_form", "float64", "additive_score", "wide", {"tangent": "one minus"}),
        ("variance", "float32", "transformer_xl_layer", "one pass", {}),
    ],
)
def test_what_is_not_declared_exceeds_the_bound(
    field: str, dtype: str, operation: str, arithmetic: str, chosen: dict[str, str]
) -> None:
    derived, rng = derive(operation, arithmetic, **chosen), Random(field)
    drawn = (small_inputs(rng, operation, dtype) for _ in range(400))
    assert any(share_without(derived, field, inputs, dtype) > 1 for inputs in drawn)


def test_merged_parts_that_are_not_declared_exceed_the_bound() -> None:
    told = next(each for each in EXCEEDED_BEFORE if each["order"].get("softmax") == "merged")
    case, dtype = case_from(told), told["dtype"]
    assert share_without(case.derived, "lse_merge", case.inputs(dtype), dtype) > 100


@pytest.mark.parametrize("softmax", ["row", "online"])
@pytest.mark.parametrize("family", ["one_signed", "uniform"])
def test_a_maximum_through_which_a_gradient_goes_exceeds_the_bound_untold(
    softmax: str, family: str
) -> None:
    told = derive(f"{ATTENTION}_grad", "wide", maximum="differentiated", softmax=softmax)
    sizes, shares, untold = {"B": 1, "H": 2, "N": 1, "M": 3000, "D": 1, "E": 8}, [], []
    for seed in range(8):
        recipe = fixed_recipe(CATALOGUE[told.operation], sizes, family, seed=seed)
        inputs = expand(recipe, "float32")
        shares.append(share_of_bound(told, inputs, "float32"))
        untold.append(share_without(told, "maximum", inputs, "float32"))
    assert max(shares) <= 1 < max(untold)


# the grammar and the search

SETTINGS: dict[str, dict[str, str]] = {
    "multiply": {"sums": "forward"},
    "block": {"softmax": "online"},
    "parts": {"softmax": "merged"},
    "keys": {"softmax": "online", "block": "2"},
    "addend": {"sums": "forward", "scale": "query"},
    "division": {"sums": "forward"},
    "tree": {"factors": "apart"},
}
"""Where a choice matters only after another one."""


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_no_alternative_is_idle(name: str) -> None:
    having = [operation for operation in CHOICES if name in CHOICES[operation]]
    for alternative in ALTERNATIVES[name][1:]:
        assert any(
            changes_an_answer(operation, name, alternative)
            for operation in having
            if alternative in alternatives(operation, name)
        ), alternative


def changes_an_answer(operation: str, name: str, alternative: str) -> bool:
    rng, setting = Random(operation), SETTINGS.get(name, {})
    for arithmetic, dtype in [("wide", "float32"), ("eager", "float16")] * 8:
        made = [
            derive(operation, arithmetic, **setting, **each) for each in ({}, {name: alternative})
        ]
        if differ(*made, small_inputs(rng, operation, dtype, most=600), dtype):
            return True
    return False


def differ(one: Derivation, other: Derivation, inputs: dict[str, Any], dtype: str) -> bool:
    answers = zip(*(leaves(compute(each, inputs, dtype)) for each in (one, other)), strict=True)
    return any(not np.array_equal(a, b, equal_nan=True) for a, b in answers if a is not None)


def test_a_case_is_the_same_after_json() -> None:
    rng = Random(6)
    case = draw_case(rng, "additive_attention_grad", "float16")
    for _ in range(40):
        case = neighbour(rng, case, "float16")
    again = case_from(json.loads(json.dumps(case.data)))
    share = share_of_bound(case.derived, case.inputs("float16"), "float16")
    assert len(case.edits) > 3 and again.data == case.data
    assert share_of_bound(again.derived, again.inputs("float16"), "float16") == share


def test_the_search_climbs() -> None:
    search = Search("scaled_dot_product_attention", "float64").go_on(DRAWS)
    drawn = search.share
    assert search.go_on(100).share > 1.2 * drawn


def test_the_command_goes_on_where_its_file_ends(tmp_path: Path) -> None:
    file = tmp_path / "shares.json"
    ask = ["--file", str(file), "--operation", "dropout", "--evaluations"]
    assert main([*ask, "20"]) == 0
    first = json.loads(file.read_text())["default"]
    assert main([*ask, "20"]) == 0 and json.loads(file.read_text())["default"] == first
    assert main([*ask, "30"]) == 0
    later = json.loads(file.read_text())["default"]["searches"]
    assert [each["evaluations"] for each in later] == [30] * len(DTYPES)
    assert all(b["share"] >= a["share"] for a, b in zip(first["searches"], later, strict=True))


def test_the_table_has_the_largest_share_of_each(tmp_path: Path) -> None:
    file = File(tmp_path / "shares.json", "default")
    file.searches["dropout", "float16"] = Search("dropout", "float16", share=0.51, evaluations=7)
    file.searches["dropout", "float64"] = Search("dropout", "float64", share=0.25, evaluations=3)
    file.save()
    assert main(["--file", str(file.path), "--table", str(tmp_path / "shares.md")]) == 0
    table = (tmp_path / "shares.md").read_text()
    assert "- 10 implementations and inputs" in table
    cells = {"float16": "0.510", "float64": "0.250"}
    row = " | ".join(cells.get(dtype, "-") for dtype in DTYPES)
    assert f"| dropout | forward | {row} |" in table


def test_the_published_shares_are_of_every_bound_on_two_code_paths_and_none_exceeds_it() -> None:
    _, *tables = (ROOT / "docs/data/bound_shares.md").read_text().split("\n## ")
    assert len(tables) > 1
    for table in tables:
        rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:1] == "|"]
        told = {name + "_grad" * (way == "backward"): shares for name, way, *shares in rows[2:]}
        assert told.keys() == {*BY_HAND}
        shares = {
            (name, dtype): float(x)
            for name in told
            for dtype, x in zip(rows[0][2:], told[name], strict=True)
        }
        assert all(x <= 1 for x in shares.values())
        assert [at for at, x in shares.items() if not x] == [("dequantize", "float64")], (
            "one product, which the reference rounds alike"
        )


def test_the_worst_cases_are_written_for_the_code_path_that_is_named(tmp_path: Path) -> None:
    ask = ["--file", str(tmp_path / "shares.json"), "--operation", "dropout"]
    for path in ("one", "other"):
        main([*ask, "--evaluations", "5", "--path", path])
    assert main([*ask, "--path", "one", "--witnesses", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [told["dtype"] for told in found] == sorted(DTYPES)
    assert all(case_from(told).derived.operation == "dropout" for told in found)


def test_a_share_above_one_is_the_exit_status(tmp_path: Path) -> None:
    file = File(tmp_path / "shares.json", "default")
    file.searches["dropout", "float16"] = Search("dropout", "float16", share=1.01, evaluations=1)
    file.save()
    assert main(["--file", str(file.path), "--operation", "dropout", "--evaluations", "1"]) == 1
