"""
Where the time of a run goes: in the backends under test, in the oracle, or elsewhere (recipes,
bounds, trivial answers, comparison).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

SECONDS_SPENT = {"backend": 0.0, "oracle": 0.0}
"""Seconds of this process so far."""


@contextmanager
def account_for(what: str) -> Iterator[None]:
    """Count the time of a block as the backend's or the oracle's."""
    start = perf_counter()
    try:
        yield
    finally:
        SECONDS_SPENT[what] += perf_counter() - start


@contextmanager
def measure_block(seconds: dict[str, float]) -> Iterator[None]:
    """Write down what a block took in all, and what of that was the backend's and the oracle's."""
    before, start = dict(SECONDS_SPENT), perf_counter()
    try:
        yield
    finally:
        seconds |= {what: SECONDS_SPENT[what] - before[what] for what in SECONDS_SPENT} | {
            "all": perf_counter() - start
        }


def time_shares(tallies: Iterable[dict[str, Any]]) -> dict[str, float]:
    """
    Compute the shares of backend, oracle and the rest in the time of all cells; nothing where no
    cell took any.
    """
    seconds = [tally.get("seconds") or {} for tally in tallies]
    total = {what: sum(one.get(what, 0.0) for one in seconds) for what in ("all", *SECONDS_SPENT)}
    if not total["all"]:
        return {}
    parts = {what: total[what] / total["all"] for what in SECONDS_SPENT}
    return parts | {"elsewhere": 1 - sum(parts.values())}


def time_summary(tallies: Iterable[dict[str, Any]]) -> str:
    """
    Write ``time: 41 % in the backends, 30 % in the specification, 29 % in drawing, comparing and
    explaining``
    """
    found = time_shares(tallies)
    where = {
        "backend": "in the backends",
        "oracle": "in the specification",
        "elsewhere": "in drawing, comparing and explaining",
    }
    return (
        "time: " + ", ".join(f"{share:.0%} {where[what]}" for what, share in found.items())
        if found
        else ""
    )
