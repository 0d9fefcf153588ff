"""
Calls that models make beside training at usual widths: one query, and few, of a long cache, bare,
under a mask and under each option of a cache; many heads at once; sequences of which one is several
times as long as the other; widths that few models have.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from attnverify.catalogue.operation import Operation
from attnverify.inputs.real.dealt_calls import (
    SHORT,
    dealt,
    drawn_parts,
    lengths_of,
    seeing,
    usual_family,
    with_parts,
)
from attnverify.inputs.recipe import Recipe

Sizes = dict[str, int]

CACHES = (1024, 2047, 2048, 4097, 8192)
FEW_CACHES = (2047, 8192)
"""Lengths of a cache; where the bound has as many elements, or more, as of a gradient."""

USUAL = (64, 128)
WIDER = ((32, 32), (72, 72), (112, 112), (160, 160), (192, 128), (256, 256))
"""Widths of queries and of values."""
LATENT = {"B": 2, "H": 16, "D": 64, "E": 512}

LONG = (704, 769, 1024, 1100)
SOME = (257, 300, 320)
"""Lengths of many tiles; of a short cache."""

CROWD = {"B": 4, "H": 40, "G": 8, "N": 1}
"""160 pairs of entry and head: one step of a model that answers several at once."""

OF_A_CACHE: tuple[dict[str, Any], ...] = (
    {},
    {"window": (128, None)},
    {"sink": "given"},
    {"soft_cap": 30.0},
    {"lengths": {"seed": 3}},
)
"""Options of a step of a model; those that it has not are left out."""

LAYER = {"B": 2, "H": 4, "D": 64, "F": 256, "L": 1}


def model_calls(op: Operation, rng: Random) -> Iterator[Recipe]:
    """Yield the further calls of an operation that has an everyday call."""
    if op.traits.parameters:
        if "M" in op.sizes and not (op.traits.square or op.is_gradient):
            for N in (1, rng.choice(SHORT)):
                M = rng.choice(LONG)
                sizes = LAYER | {"N": N, "M": M, "S": M - N, "P": M}
                yield with_parts(op, sizes, usual_family(op), {}, rng.randrange(99))
        return
    if "M" in op.sizes or op.lies_otherwise:
        yield from _long_calls(op, rng)
    if "D" in op.sizes:
        for D, E in () if op.is_packed and op.is_gradient else WIDER:
            sizes = {"B": 1, "H": 2, "D": D, "E": E} | lengths_of(op, *rng.choices(SHORT, k=2))
            parts = drawn_parts(op, rng)
            yield with_parts(op, sizes, usual_family(op), parts, rng.randrange(99))
    if op.is_score or op.traits.square:
        return
    if "value" in op.arguments or op.mask or op.lies_otherwise:
        yield from _decoding_calls(op, rng)
        yield from _steps_of_models(op, rng)


def _long_calls(op: Operation, rng: Random) -> Iterator[Recipe]:
    """Many keys for some queries, under a mask of truths, and many queries of some keys."""
    axes = [axes for axes in op.traits.mask_axes if axes.endswith("N M")]
    parts = drawn_parts(op, rng, rng.choice(axes), "bool") if axes else {}
    sizes = {
        "B": 1 + op.is_packed,
        "H": 2 - op.is_packed,
        "D": 128,
        "E": 128,
        "Q": 64,
        "K": 64,
        "A": 16,
        "W": 64,
    }
    for N, M in ((rng.choice(SOME), rng.choice(LONG)), (rng.choice(LONG), rng.choice(SOME))):
        if N < M or not (op.traits.causal or op.traits.square or op.is_packed):
            call = sizes | lengths_of(op, N, M)
            yield seeing(with_parts(op, call, usual_family(op), parts, rng.randrange(99)))
        parts = {}


def _decoding_calls(op: Operation, rng: Random) -> Iterator[Recipe]:
    """
    One query, bare and under a mask, and few, of which each likes a key at an edge as much as all
    others; each length of a cache.
    """
    forms = dealt(("bool",) if op.mask == "visible" else ("bool", "noisy", "finite"), rng)
    few = op.is_gradient or "A" in op.sizes or op.is_packed
    start = rng.randrange(2)
    for number, M in enumerate(FEW_CACHES if few else CACHES):
        some = (rng.choice((2, 3, 4)), bool(op.mask) and rng.random() < 0.5)
        for place, (N, masked) in enumerate(((1, False), (1, True), some)):
            if masked and not op.mask:
                continue
            width = USUAL[(number + place + start) % 2]
            sizes = {"B": 2 - few * (not op.is_packed), "H": 1 + (N == 1), "N": N, "M": M, "P": M}
            sizes |= {"D": width, "E": width, "Q": 64, "K": 64, "A": 16, "W": rng.choice((16, 64))}
            mask: dict[str, Any] = {"pattern": "right_padding", "axes": op.key_mask_axes or "N M"}
            mask |= {"form": next(forms), "seed": rng.randrange(99)} if masked else {}
            parts = {"mask": mask} if masked else {}
            yield with_parts(op, sizes, "spotlight", parts, rng.randrange(1, 99, 2))


def _steps_of_models(op: Operation, rng: Random) -> Iterator[Recipe]:
    """A step of a model of many heads; steps and short runs of them under each option."""
    if op.is_gradient or "D" not in op.sizes:
        return
    widths = dealt(USUAL, rng)
    width = next(widths)
    crowd = CROWD | {"M": rng.choice(SOME), "D": width, "E": width, "P": 320, "W": 16}
    crowd |= LATENT if op.is_latent else {}
    yield with_parts(op, crowd, usual_family(op), {}, rng.randrange(99))
    for given in OF_A_CACHE if op.domains.keys() & {"window"} else ():
        for N in (1, rng.choice((2, 3, 4))):
            width = next(widths) if N == 1 else width
            sizes = {"B": 2, "H": 4, "G": 2, "N": N, "M": rng.choice(LONG), "D": width, "E": width}
            sizes["W"] = rng.choice((16, 64))
            options = {name: x for name, x in given.items() if name in op.domains}
            parts = {"options": {"causal": True} | options}
            yield with_parts(op, sizes, "spotlight", parts, rng.randrange(1, 99, 2))
