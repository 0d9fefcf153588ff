"""
The budget of size: how many statements each room may have stands in .ci/rooms.toml with a reason.

A room that outgrows its line by more than 2 % is red until the line is changed, with why, in the
same commit; one that has shrunk by more than 5 % is red until the line takes the gain.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attnverify import ROOT

OVER, UNDER, FEW = 1.02, 0.95, 10
"""A room of a few statements may be off by ten of them."""


def count_rooms(checkout: Path) -> dict[str, int]:
    line = [sys.executable, str(ROOT / ".ci" / "figures"), "--rooms", str(checkout)]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    return {room: int(count) for room, count in map(str.split, said.splitlines())}


def complaint(counted: int, statements: int, why: str) -> str:
    """What is wrong with a line of the budget, or nothing."""
    if not why.strip():
        return "why: wanted a reason, got nothing"
    if counted > max(OVER * statements, statements + FEW):
        return f"{counted} statements, {statements} allowed: shrink it, or say why it may grow"
    if counted < min(UNDER * statements, statements - FEW):
        return f"{counted} statements, {statements} allowed: lower the line"
    return ""


BUDGET = tomllib.loads((ROOT / ".ci" / "rooms.toml").read_text())
COUNTED = count_rooms(ROOT)


def test_every_room_has_a_line_and_every_line_a_room() -> None:
    assert BUDGET.keys() == COUNTED.keys()


@pytest.mark.parametrize("room", sorted(BUDGET))
def test_a_room_is_no_larger_than_its_line(room: str) -> None:
    assert complaint(COUNTED.get(room, 0), **BUDGET[room]) == ""


@pytest.mark.parametrize(("counted", "statements", "why", "said"), [
    (1021, 1000, "so", "shrink it"),
    (949, 1000, "so", "lower the line"),
    (1000, 1000, " ", "wanted a reason"),
    (31, 20, "so", "shrink it"),
])  # fmt: skip
def test_a_line_that_does_not_hold_is_told(
    counted: int, statements: int, why: str, said: str
) -> None:
    assert said in complaint(counted, statements, why)


def test_statements_are_counted_without_docstrings(tmp_path: Path) -> None:
    for folder in ("attnverify", "spec", "numpy_ref", "torch_impl", "cupy_impl"):
        (tmp_path / folder).mkdir()
    text = "'Text.'\n\ndef f():\n    'Text.'\n    return 1\n"
    (tmp_path / "attnverify" / "room.py").write_text(text)
    (tmp_path / "spec" / "law.py").write_text("a = 1\n")
    assert count_rooms(tmp_path) == {"room": 2, "spec": 1}
