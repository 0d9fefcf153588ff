"""What calls have shown of an arithmetic is told in one line, for all dtypes and gradients."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from attnverify.precision import find_fields
from attnverify.report.next_steps import describe_shown
from attnverify.report.terminal_colours import fold_lines


def tally(dtype: str, implementation: str = "softmax", **shown: str) -> dict[str, Any]:
    return {
        "backend": "mine",
        "operation": "softmax",
        "implementation": implementation,
        "dtype": dtype,
        "shown": shown,
    }


def told(tallies: list[dict[str, Any]], precision: Any = None) -> list[str]:
    backend = SimpleNamespace(name="mine", source="mine.py", precision=precision)
    return fold_lines(describe_shown([backend], tallies), 60)


def line_in(lines: list[str]) -> Mapping[str, Any]:
    """What the line says, as a file would."""
    found: dict[str, Any] = {}
    exec(lines[-1].strip(), found)
    return dict(found["PRECISION"])


SHOWN = [
    tally("float16", step="float16"),
    tally("float16", maximum="differentiated"),
    tally("bfloat16", step="bfloat16"),
    tally("float32"),
]


def test_one_line_is_right_for_all_dtypes_and_gradients() -> None:
    lines = told(SHOWN)
    assert sum("PRECISION" in line for line in lines) == 1
    assert line_in(lines) == {
        "float16": {"step": "float16", "maximum": "differentiated"},
        "bfloat16": {"step": "bfloat16"},
    }


def test_the_line_holds_what_is_declared_already() -> None:
    declared = line_in(told(SHOWN, {"accumulate": "float32"}))
    assert find_fields(declared, "softmax", "softmax", "float32") == {"accumulate": "float32"}
    assert find_fields(declared, "softmax", "softmax", "bfloat16") == {
        "accumulate": "float32",
        "step": "bfloat16",
    }


def test_each_of_several_functions_has_its_own_arithmetic() -> None:
    declared = line_in(told([*SHOWN, tally("float16", "softmax_online")]))
    assert find_fields(declared, "softmax", "softmax_online", "float16") == {}
    assert find_fields(declared, "softmax", "softmax", "bfloat16") == {"step": "bfloat16"}


def test_nothing_is_told_of_what_showed_nothing() -> None:
    assert told([tally("float16")]) == []
