"""What takes long is shared out: some of it with each commit, all of it every night."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest

from attnverify import ROOT

__all__ = ["SHARES", "covering", "leave_to_the_night"]


SHARES: dict[str, int] = tomllib.loads((ROOT / "tests/shares.toml").read_text())
"""Of a test, how many of its cases there are for each that is run with each commit; 0: for none."""


def leave_to_the_night(items: Iterable[pytest.Item], shares: Mapping[str, int] = SHARES) -> None:
    """Mark as thorough all but every n-th case of each test that has a share."""
    met = Counter[str]()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name not in shares or item.get_closest_marker("thorough"):
            continue
        if not shares[name] or met[name] % shares[name]:
            item.add_marker(pytest.mark.thorough)
        met[name] += 1


def covering(*choices: Iterable[Any]) -> list[Any]:
    """
    List every combination, all but as many as the longest choice has marked as thorough: each of
    each choice is met with some of the others.
    """
    lists = [[*each] for each in choices]
    turns = range(max(map(len, lists)))
    kept = {tuple(turn % len(each) for each in lists) for turn in turns}
    return [
        pytest.param(
            *(each[at] for each, at in zip(lists, places, strict=True)),
            marks=() if places in kept else pytest.mark.thorough,
        )
        for places in product(*(range(len(each)) for each in lists))
    ]
