"""
The differential tests. Their body is importable: a user runs it from anywhere, our chapters run it
for their operations.

A module that imports these six functions gets the cells of its ``CHAPTER``, or of all chapters if
it names none; the plugin fills the parameter ``cell`` in (see :mod:`attnverify.plugin`).
"""

from typing import Any

import pytest

from attnverify.verdicts.cell import Cell

__all__ = [
    "test_gradients",
    "test_hidden_nan",
    "test_isolation",
    "test_refusals",
    "test_side_effects",
    "test_values",
]

pytestmark = pytest.mark.differential


def judged(cell: Cell, attnverify_run: Any, request: pytest.FixtureRequest) -> None:
    """
    Run a cell and write down its tally; a known failure, one of what is not required, and a weak
    cell where these are allowed, are expected to fail.
    """
    tally = attnverify_run.judge(cell)
    request.node.user_properties.append(("tally", tally.as_dict()))
    if attnverify_run.is_red(tally.as_dict()):
        pytest.fail(tally.reason, pytrace=False)
    if tally.verdict == "failed":
        pytest.xfail(f"not required: {tally.reason}")
    if tally.verdict in ("known failure", "weak"):
        pytest.xfail(tally.reason)
    if tally.verdict == "unsupported":
        pytest.skip(f"unsupported: {tally.reason}")


@pytest.mark.differential
def test_values(cell: Cell, attnverify_run: Any, request: pytest.FixtureRequest) -> None:
    judged(cell, attnverify_run, request)


@pytest.mark.differential
def test_gradients(cell: Cell, attnverify_run: Any, request: pytest.FixtureRequest) -> None:
    judged(cell, attnverify_run, request)


@pytest.mark.differential
def test_refusals(cell: Cell, attnverify_run: Any, request: pytest.FixtureRequest) -> None:
    judged(cell, attnverify_run, request)


@pytest.mark.differential
def test_side_effects(cell: Cell, attnverify_run: Any, request: pytest.FixtureRequest) -> None:
    judged(cell, attnverify_run, request)


@pytest.mark.differential
def test_hidden_nan(cell: Cell, attnverify_run: Any, request: pytest.FixtureRequest) -> None:
    judged(cell, attnverify_run, request)


@pytest.mark.differential
def test_isolation(cell: Cell, attnverify_run: Any, request: pytest.FixtureRequest) -> None:
    judged(cell, attnverify_run, request)
