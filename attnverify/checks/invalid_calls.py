"""
Refusals: invalid calls, each made from a right one by one change. The specification refuses them
with ValueError, and so must everyone.

They are derived from the specification's own axes: for every array another rank, a size that does
not fit and an integer dtype; for every mask a shape that does not broadcast and a wrong dtype; for
every count, option and mapping what it cannot be.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from attnverify.catalogue.annotations import Domain
from attnverify.catalogue.operation import ARGUMENT_SIZES, CATALOGUE, INNER, Operation
from attnverify.contract.shapes import PATTERN
from attnverify.inputs.expand import expand, limit_of, shape_of
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.given import sizes_of
from attnverify.inputs.recipe import Inputs
from attnverify.spec.domains import GIVEN

DISTINCT = {"Q": 8, "K": 9, "A": 11, "F": 12}
"""With the usual sizes of fixed cases, no two alike: no mismatch fits by luck."""


class Limits(NamedTuple):
    """What a call keeps to, for a kernel that takes no other; by default every option is in use."""

    sizes: tuple[tuple[str, int], ...] = ()
    has_mask: bool = True
    align: str = "end"


UNLIMITED = Limits()
SAME_WIDTH, SQUARE, EVEN = (("D", 8), ("E", 8)), (("N", 6), ("M", 6)), (("H", 4),)
WIDE = (("D", 64), ("E", 64))


def limits_of(op: Operation) -> list[Limits]:
    """List what the calls may keep to, from nothing on to what the most limited kernels take."""
    sizes = ((), SAME_WIDTH, SAME_WIDTH + SQUARE, SAME_WIDTH + SQUARE + EVEN, WIDE + SQUARE + EVEN)
    masks = (True, False) if op.mask and not op.requires(op.mask) else (True,)
    aligns = ("end", "start") if "align" in op.arguments else ("end",)
    return [Limits(*each) for each in product(sizes, masks, aligns)]


@lru_cache(maxsize=64)
def valid_call(operation: str, limits: Limits = UNLIMITED) -> Inputs:
    """Build a call that the specification accepts."""
    op = CATALOGUE[operation]
    mask = {"pattern": "random", "axes": "N M", "form": "bool", "seed": 1}
    sizes = DISTINCT | dict(limits.sizes)
    recipe = fixed_recipe(op, sizes, mask=mask if op.mask and limits.has_mask else None)
    if limits.has_mask:
        optional = {name: GIVEN for name in op.axes if name in op.domains}
        recipe = replace(recipe, options=recipe.options | optional)
    if "align" in recipe.options:
        recipe = replace(recipe, options=recipe.options | {"align": limits.align})
    if "keep" in op.arguments:
        recipe = replace(recipe, dropout={"p": 0.25, "seed": 1})
    return expand(recipe, "float64")


def without_dropout(op: Operation, call: Inputs) -> Inputs:
    """Return a call without what the operation can be called without."""
    optional = "keep" in call and not op.requires("keep")
    return call | {"keep": None, "p": 0.0} if optional else call


@lru_cache(maxsize=64)
def invalid_calls(operation: str, limits: Limits = UNLIMITED) -> dict[str, Inputs]:
    """
    Build every invalid call of an operation, by a few words that say what is wrong.

    Dropout is in use only where it is what is wrong: who does not support it must still refuse the
    rest.
    """
    op, right = CATALOGUE[operation], valid_call(operation, limits)
    plain = without_dropout(op, right)
    wrong: dict[str, Inputs] = {}
    for name, value in right.items():
        for words, other in invalid_values(op, name, value, right):
            wrong[f"{name} {words}"] = {**(right if name in ("keep", "p") else plain), name: other}
    for name, domain in op.domains.items():
        for words, other in invalid_options(domain, sizes_of_call(op, right)):
            wrong[f"{name} {words}"] = {**plain, name: other}
    if "keep" in right:
        wrong["p without keep"] = {**right, "keep": None}
    return wrong | invalid_combinations(plain)


def sizes_of_call(op: Operation, call: Inputs) -> dict[str, int]:
    """Return the sizes that a call gives as arrays or as numbers."""
    named = {
        letter[-1]: call[name] // int(letter[:-1] or 1)
        for name, letter in ARGUMENT_SIZES.items()
        if call.get(name) is not None
    }
    return sizes_of(op, call) | named


def invalid_options(domain: Domain, sizes: dict[str, int]) -> Iterator[tuple[str, Any]]:
    """List what an option cannot be: by its annotation, and where it is integers by their shape."""
    for value in domain.refused:
        yield str(value), value
    if domain.integers is None:
        return
    right = [np.zeros(shape_of(axes, sizes), domain.integers.dtype) for axes in domain.axes]
    changes: dict[str, Callable[[ndarray], ndarray]] = {
        "of floats": lambda x: x + 0.5,
        "too long": lambda x: np.concatenate([x, x]),
    }
    for side, limit, step in (("below", "least", -1), ("above", "most", 1)):
        if side in domain.integers.refuses:
            beyond = limit_of(getattr(domain.integers, limit), sizes) + step
            changes[f"{side} its {limit}"] = partial(np.full_like, fill_value=beyond)
    for words, change in changes.items():
        yield words, change(right[0]) if len(right) == 1 else (change(right[0]), *right[1:])
    if len(right) > 1:
        yield "alone", right[0]


def invalid_combinations(right: Inputs) -> dict[str, Inputs]:
    """List what two arguments cannot be at once, though each of them is right with another."""
    wrong: dict[str, Inputs] = {}
    masks = dict.fromkeys({"mask", "visible"} & set(right))
    if masks and {"key", "value"} <= set(right):  # where no mask says how many keys there are
        for name, other in (("key", "value"), ("value", "key")):
            longer = np.concatenate([right[name], right[name]], axis=-2)
            wrong[f"{name} longer than {other}, without a mask"] = {**right, **masks, name: longer}
    if {"key_pos_embeddings", "key_pos_bias"} <= set(right):
        M = right["key"].shape[-2]
        for P, words in ((2, "two positions"), (M - 1, "M - 1 positions"), (M // 2, "M / 2")):
            tables = {name: right[name][: 2 * P] for name in ("key_pos_embeddings", "key_pos_bias")}
            wrong[f"tables of {words}"] = {**right, **tables}
    return wrong


def invalid_values(
    op: Operation, name: str, value: Any, right: Inputs
) -> Iterator[tuple[str, Any]]:
    """List what one argument cannot be."""
    if name in op.axes and isinstance(value, ndarray):
        yield from invalid_arrays(op, name, value)
    elif isinstance(value, ndarray) and value.dtype == bool:
        yield from invalid_masks(name, value, right)
    elif name in ("hids", "mems", "d_new_mems"):
        yield from invalid_lists(name, value, op)
    elif name == "parameters":
        yield from invalid_parameters(value)
        yield from incomplete_options(op, value, right)
    else:
        yield from NUMBER_CHANGES.get(name, ())


def invalid_arrays(op: Operation, name: str, x: ndarray) -> Iterator[tuple[str, Any]]:
    yield "of integers", np.ones(x.shape, np.int64)
    if op.axes[name].split()[0] != "...":
        yield "with an axis too many", x[None]
        yield "with an axis too few", x[0, ...]  # of one axis, no NumPy scalar
    axes = op.axes[name].split()
    for axis, letter in enumerate(axes):
        shared = sum(letter in other.split() for other in op.axes.values()) > 1 or name in (
            "d_output",
        )
        if letter != "..." and (shared or letter.startswith("2")):
            place = axis - len(axes)
            yield (
                f"with {letter} too large",
                np.concatenate([x, x.take([0], axis=place)], axis=place),
            )
    if name == "key_pos_embeddings":
        yield "with fewer rows than 2P", x[:-2]


def invalid_masks(name: str, mask: ndarray, right: Inputs) -> Iterator[tuple[str, Any]]:
    yield "of integers", mask.astype(np.int64)
    yield "with keys too many", np.concatenate([mask, mask[..., :1]], axis=-1)
    if name in ("keep", "visible", "key_padding_mask"):
        yield "of floats", mask.astype(np.float64)
    if (
        mask.ndim == 2
        and name != "key_padding_mask"
        and mask.shape[0] > 1
        and "n_heads" not in right
    ):
        yield "with queries too many", np.concatenate([mask, mask[:1]], axis=0)
    if name in ("attn_mask", "key_padding_mask") or "n_heads" in right:
        yield "with an axis too few", mask[0]
    if name == "attn_mask":
        yield (
            "with a batch that is no multiple of the heads",
            np.broadcast_to(mask, (7, *mask.shape)).copy(),
        )
        yield "of one batch entry's heads", np.stack([mask] * right["num_heads"])
        yield "with one entry for all", mask[None]


def invalid_lists(name: str, arrays: Any, op: Operation) -> Iterator[tuple[str, Any]]:
    if arrays is None:
        return
    yield "with a layer too few", arrays[:-1]
    yield "with a batch too many", [np.concatenate([x, x[:1]]) for x in arrays]
    yield "with a width too large", [np.concatenate([x, x[..., :1]], axis=-1) for x in arrays]
    yield "of integers", [np.ones(x.shape, np.int64) for x in arrays]


def invalid_parameters(parameters: Any) -> Iterator[tuple[str, Any]]:
    first = parameters[0] if isinstance(parameters, list) else parameters

    def again(changed: Inputs) -> Any:
        return [changed, *parameters[1:]] if isinstance(parameters, list) else changed

    for name in first:
        if not name.endswith(".bias"):
            yield f"without {name}", again({key: x for key, x in first.items() if key != name})
        yield (
            f"with {name} too wide",
            again(first | {name: np.concatenate([first[name], first[name][..., :1]], axis=-1)}),
        )
    yield "with a name that nobody knows", again(first | {"q_proj.bais": np.ones(3)})


def incomplete_options(op: Operation, parameters: Any, right: Inputs) -> Iterator[tuple[str, Any]]:
    """Yield parameters with one of those that are there together or not at all."""
    for name, _, axes in PATTERN.findall(op.traits.option)[:1]:
        sizes = {"F": right["x"].shape[-1], INNER: 3}
        one = {name: np.ones([sizes[letter] for letter in axes.split()])}
        stack = isinstance(parameters, list)
        changed = [parameters[0] | one, *parameters[1:]] if stack else parameters | one
        yield f"with {name} and no other of the option", changed


NUMBER_CHANGES: dict[str, tuple[tuple[str, Any], ...]] = {
    "n_heads": (("0", 0), ("-1", -1), ("2.5", 2.5)),
    "num_heads": (("0", 0), ("5, no divisor of 12", 5), ("-3", -3)),
    "N": (("0", 0), ("-2", -2)),
    "M": (("0", 0), ("-2", -2), ("1.5", 1.5)),
    "B": (("0", 0), ("-2", -2)),
    "F": (("0", 0), ("odd", 7)),
    "n_layers": (("0", 0), ("-1", -1)),
    "batch": (("0", 0), ("-1", -1)),
    "width": (("0", 0), ("-1", -1)),
    "rotary_dim": (("0", 0), ("-2", -2), ("3", 3), ("1024", 1024), ("2.0", 2.0)),
    "p": (("1", 1.0), ("-0.1", -0.1), ("1.5", 1.5)),
}


@lru_cache(maxsize=64)
def calls_refused_by_spec(operation: str, limits: Limits = UNLIMITED) -> dict[str, Inputs]:
    """
    Select the invalid calls that the specification does refuse with ValueError: those, and no
    others, everyone must refuse.
    """
    refused = {}
    for words, inputs in invalid_calls(operation, limits).items():
        try:
            with np.errstate(all="ignore"):
                CATALOGUE[operation].specification(**inputs)
        except ValueError:
            refused[words] = inputs
    return refused
