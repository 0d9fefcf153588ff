"""
Pairs of options: a few deals in which every value of every option meets every value of every other.
"""

from functools import lru_cache
from itertools import combinations
from typing import Any

from attnverify.catalogue.annotations import Domain
from attnverify.catalogue.operation import Operation

PRESENT = "present"
"""What an array of integers is dealt as: it is there, or it is not, where it need not be."""

Place = tuple[int, int]
"""An option and one of its values, by their numbers."""


def values_of(domain: Domain) -> tuple[Any, ...]:
    """Return what an option is dealt as."""
    if domain.integers is None:
        return domain.choices
    return (PRESENT,) if domain.required else (None, PRESENT)


def deals(operation: Operation) -> list[dict[str, Any]]:
    """
    Return rows of a covering array over the operation's options: each pair of values of two of them
    stands in some row. Of one option or none there are no pairs, and no rows.
    """
    names = tuple(operation.domains)
    values = tuple(values_of(operation.domains[name]) for name in names)
    rows = covering_array(tuple(map(len, values))) if len(names) > 1 else ()
    return [
        {name: values[k][at] for k, (name, at) in enumerate(zip(names, row, strict=True))}
        for row in rows
    ]


@lru_cache
def covering_array(counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """
    Return rows of which each holds as many pairs that no row before holds as can be had, value
    after value, beginning with a pair that is missing.
    """
    missing, rows = all_pairs(counts), []
    while missing:
        row = dict(min(missing))
        for option in sorted(set(range(len(counts))) - set(row), key=lambda k: -counts[k]):
            row[option] = max(
                range(counts[option]),
                key=lambda value: len(missing & with_others(row, (option, value))),
            )
        rows.append(tuple(row[k] for k in range(len(counts))))
        missing -= pairs_of(rows[-1])
    return tuple(rows)


def all_pairs(counts: tuple[int, ...]) -> set[tuple[Place, Place]]:
    """List each value of each option beside each of each later one."""
    return {
        ((a, x), (b, y))
        for a, b in combinations(range(len(counts)), 2)
        for x in range(counts[a])
        for y in range(counts[b])
    }


def pairs_of(row: tuple[int, ...]) -> set[tuple[Place, Place]]:
    return set(combinations(enumerate(row), 2))


def with_others(row: dict[int, int], place: Place) -> set[tuple[Place, Place]]:
    """Return the pairs of one place and those that a row has."""
    return {(min(place, other), max(place, other)) for other in row.items()}
