"""The fewest mistakes that explain all: each finding names those of which one would explain it."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations


def smallest_cover(named: Sequence[Collection[str]]) -> tuple[str, ...]:
    """
    Choose the fewest names so that each of the findings has one of its own among them; of as few
    those that most findings name. What names nothing asks for nothing.

    >>> smallest_cover([{"scale", "mask"}, {"mask", "tail"}, {"tail"}, set()])
    ('mask', 'tail')
    """
    wanted = [frozenset(names) for names in named if names]
    counts = Counter(name for names in wanted for name in names)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    sizes = range(len(ranked) + 1)
    tried = (chosen for size in sizes for chosen in combinations(ranked, size))
    return next(chosen for chosen in tried if all(names.intersection(chosen) for names in wanted))
