"""What takes long is shared out: some of it with each commit, all of it every night."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

__all__ = ["covering", "one_in"]


def one_in(n: int, parameters: Iterable[Any]) -> list[Any]:
    """Mark all but every n-th of the parameters as thorough; marks that they have stay."""
    found = []
    for number, each in enumerate(parameters):
        own = each if hasattr(each, "marks") else pytest.param(each)
        marks = () if number % n == 0 else (pytest.mark.thorough,)
        found.append(pytest.param(*own.values, id=own.id, marks=(*own.marks, *marks)))
    return found


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
