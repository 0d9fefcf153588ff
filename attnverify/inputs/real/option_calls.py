"""
Calls of several tiles under each option that an operation has: every value of one, what counts keys
as many as models look back at. In small calls a window of three tiles is none.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from attnverify.catalogue.operation import Operation
from attnverify.inputs.real.required_options import BESIDE

Sizes = dict[str, int]

COUNTED = {"window": ((128, None), (100, 70)), "chunk": (128,), "pinned": (4,), "block": (16, 1)}
"""Numbers of keys, where there are hundreds of them."""

FURTHER = BESIDE | {"offset": {"causal": True}, "pinned": {"window": (64, None)}}
"""What an option says nothing without."""

DEALT_ELSEWHERE = ("align",)

LENGTHS = (257, 300, 320, 384)
HEADS = ((4, 2), (2, 1))
"""Heads of queries, and of keys that they share."""
TOGETHER = 2
"""Options of a call: of more, one hides what another would show."""


def option_calls(op: Operation, rng: Random) -> Iterator[tuple[Sizes, dict[str, Any]]]:
    """Yield the sizes and options of calls that have each value of each option in one of them."""
    cards = option_values(op)
    rng.shuffle(cards)
    number = rng.randrange(len(HEADS))
    while cards:
        number, options = number + 1, dict[str, Any]()
        for name, value in [*cards]:
            if name not in options and len(options) < TOGETHER:
                options[name] = value
                cards.remove((name, value))
        beside = [FURTHER[name] for name in options if name in FURTHER]
        needed = {name: x for each in beside for name, x in each.items()}
        options = {name: x for name, x in needed.items() if name in op.domains} | options
        yield sizes_under_options(op, *HEADS[number % len(HEADS)], options, rng), options


def option_values(op: Operation) -> list[tuple[str, Any]]:
    """List each option with each value that is not the usual one."""
    found: list[tuple[str, Any]] = []
    for name, domain in op.domains.items():
        drawn = () if domain.integers is None or domain.required else ({"seed": len(found) + 1},)
        values = COUNTED.get(name) or drawn or domain.choices[1:]
        found += [(name, value) for value in values if name not in DEALT_ELSEWHERE]
    return found


def sizes_under_options(
    op: Operation, H: int, G: int, options: dict[str, Any], rng: Random
) -> Sizes:
    """
    A layer of few heads; two entries and few heads, of as many queries as keys half the time, of
    fewer where a row sees what comes before it and nothing else hides.
    """
    if op.has_heads:
        return {"B": 1, "H": 4, "D": 64, "F": 256, "N": 130, "M": 130, "S": 130, "P": 130, "L": 1}
    N, M = sorted(rng.sample(LENGTHS, k=2))
    alone = options.get("causal") and not {"offset", "blocks", "pinned"} & set(options)
    N = N if alone else rng.choice((N, M))
    N = N if op.sizes & {"M", "T"} else 512
    D = 128 if alone else rng.choice((64, 128))
    sizes = {"B": 2, "H": H, "G": G, "N": N, "M": M, "P": M, "D": D, "E": D, "C": 4, "F": 256}
    return sizes | {"W": rng.choice((16, 64)), "S": N, "L": 2}
