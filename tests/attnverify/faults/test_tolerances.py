"""What a tolerance lets pass: each number of a rule, the suites' rules, what is refused."""

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from attnverify import bounds
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.cli.commands import attnverify
from attnverify.faults.tolerances import (
    SUITES,
    measure,
    measure_tolerance,
    ordinary_calls,
    parse_tolerance,
)
from attnverify.faults.user_tests import Measured
from attnverify.inputs.recipe import Inputs
from attnverify.judge.weak_cases import accepts
from attnverify.precision import resolve

WANTED = np.array([0.0, 1.0, -2.0, 100.0])


@pytest.mark.parametrize(
    ("rule", "off", "passes"),
    [
        ("atol=0.1", [0.1, 0, 0, 0], True),
        ("atol=0.1", [0.11, 0, 0, 0], False),
        ("rtol=0.01", [0, 0, 0, 0.99], True),
        ("rtol=0.01", [1e-9, 0, 0, 0], False),
        ("atol=0.1, rtol=0.01", [0, 0, 0, 1.1], True),
        ("atol=0.1 or rtol=0.01", [0, 0, 0, 1.1], False),
        ("atol=0.1 or rtol=0.01", [0.1, 0, 0, 1.0], True),
        ("atol=0.1, share=0.75", [9, 0, 0, 0], True),
        ("atol=0.1, share=0.75", [9, 9, 0, 0], False),
        ("rms=0.01", [0, 0, 0, 1], True),
        ("rms=0.01", [0, 0, 0, 1.1], False),
        ("cosine=1e-4", [0, 0, 0, 50], True),
        ("cosine=1e-4", [0, 9, 9, 0], False),
        ("rounding=1", [0, 0, 0, 100 * 2**-9], True),
        ("rounding=1", [0, 0, 0, 100 * 2**-7], False),
    ],
)
def test_each_number_of_a_rule(rule: str, off: list[float], passes: bool) -> None:
    tolerance = parse_tolerance(rule)
    assert tolerance.accepts(WANTED + off, WANTED, "bfloat16") == passes


def test_what_is_not_finite_must_be_the_same() -> None:
    loose = parse_tolerance("atol=1e9")
    wanted = np.array([np.inf, np.nan, 1.0])
    assert loose.accepts(wanted, wanted, "float32")
    for place, wrong in enumerate([-np.inf, 1.0, np.nan]):
        given = wanted.copy()
        given[place] = wrong
        assert not loose.accepts(given, wanted, "float32")
    assert not loose.accepts(wanted[:2], wanted, "float32")


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "grouped_attention_grad"])
def test_a_tighter_rule_lets_less_pass(name: str) -> None:
    loose, tight = (
        measure_tolerance(CATALOGUE[name], parse_tolerance(rule), "bfloat16")
        for rule in ("atol=0.3, rtol=0.3", "atol=0.03, rtol=0.03")
    )
    passed = [{fault.name for fault in each.survivors} for each in (loose, tight)]
    assert not loose.rejected and not tight.rejected and passed[1] < passed[0]


def measure_bound(operation: Operation, dtype: str) -> Measured:
    """What our bound alone notices in the same calls."""
    precision = resolve(None, operation.name, operation.name, dtype)

    def passes(answer: Any, inputs: Inputs, expected: Any) -> bool:
        limits = bounds.error(operation.name, inputs, precision)
        return accepts(answer, expected, bounds.scaled(limits, precision.slack))

    return measure(operation, dtype, 0, passes)


def test_what_is_let_pass_is_shown_by_what_no_ordinary_call_has() -> None:
    found = measure_bound(CATALOGUE["scaled_dot_product_attention"], "bfloat16")
    assert not found.rejected and len(found.killed) > 10
    assert {"M > 2048", "E other than D"} <= {fault.reveals for fault in found.survivors}


def test_calls_are_ordinary() -> None:
    calls = ordinary_calls(CATALOGUE["grouped_attention"], 3)
    assert {call.values["family"] for call in calls} == {"normal"}
    assert not any(call.poison for call in calls)
    assert {"window", "sink", "soft_cap"} <= {name for call in calls for name in call.options}
    assert {1, 128} <= {call.sizes["N"] for call in calls}


@pytest.mark.parametrize(
    ("words", "told"), [("rtl=1e-2", "got rtl"), ("atol=x", "got atol=x"), ("Flash", "got Flash")]
)
def test_a_rule_that_is_none_is_refused(words: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^rule: wanted numbers of atol, .*{told}"):
        parse_tolerance(words)


def test_the_command_names_what_passes() -> None:
    line = ["holes", "softmax", "--rule", "FlashInfer", "--dtype", "float32"]
    done = CliRunner().invoke(attnverify, line, standalone_mode=False)
    assert done.return_value == 0
    first, *others = done.output.splitlines()
    assert first.startswith("FlashInfer: softmax kills ") and others
    assert all(other.startswith("  survives: softmax_") for other in others)


def test_without_a_rule_each_suite_has_a_line() -> None:
    done = CliRunner().invoke(attnverify, ["holes", "softmax"], standalone_mode=False)
    assert [line.partition(": ")[0] for line in done.output.splitlines()] == [*SUITES]
