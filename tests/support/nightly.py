"""What takes long is shared out: some of it with each commit, all of it every night."""

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["one_in"]


def one_in(n: int, parameters: Iterable[Any]) -> list[Any]:
    """Mark all but every n-th of the parameters as thorough; marks that they have stay."""
    found = []
    for number, each in enumerate(parameters):
        own = each if hasattr(each, "marks") else pytest.param(each)
        marks = () if number % n == 0 else (pytest.mark.thorough,)
        found.append(pytest.param(*own.values, id=own.id, marks=(*own.marks, *marks)))
    return found
