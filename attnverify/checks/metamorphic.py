"""
Relations that need no oracle: what must stay the same when the input changes in a way that does not
matter.

Both runs are the implementation's own; each is within its bound of the truth, so that they differ
by the two bounds at most. Permute the batch, the heads, the keys; take one batch element out of the
batch; add hidden keys; add a constant to a row; change what stands in a hidden slot (no bit may
change); go segment by segment with a memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement
from attnverify.judge.invoke import arrays_of_call, call
from attnverify.judge.judging import checked_output

Case = Callable[[Implementation, str], None]
Change = Callable[
    [Operation, Inputs, np.random.Generator], "tuple[Inputs, Callable[[ndarray], ndarray]]"
]

LENGTHS = {"quick": (9, 17), "default": (33, 65), "thorough": (129, 257)}


def relation_checks(operation: str, profile: str, seed: int) -> Iterator[tuple[str, Case]]:
    """Named checks of one operation."""
    op, lengths = CATALOGUE[operation], LENGTHS[profile]
    if op.skips("relations"):
        return
    if op.is_attention:
        for name, change in relations_for(op).items():
            yield f"relation: {name}", partial(check_relation, change, op, lengths, seed)
        yield "relation: a hidden slot changes no bit", partial(check_hidden_slot, op, lengths)
    if op.is_stack:
        yield "relation: segments with memory are one long window", partial(check_segments, op)
    if "score" in op.arguments:
        yield "relation: a constant per row", partial(check_row_constant, lengths)


def baseline_inputs(op: Operation, lengths: tuple[int, int], dtype: str) -> Inputs:
    """
    Build an ordinary input that sees every key that the operation lets it see; numbers are
    multiples of 1/8.
    """
    N, M = lengths
    sizes = {"B": 2, "H": 3, "N": N, "M": M, "D": 8, "P": M + 8}
    return expand(fixed_recipe(op, sizes, "lattice"), dtype)


def check_relation(
    change: Change,
    op: Operation,
    lengths: tuple[int, int],
    seed: int,
    implementation: Implementation,
    dtype: str,
) -> None:
    """Run twice; the outputs, brought back to one order, differ by no more than both bounds."""
    inputs = baseline_inputs(op, lengths, dtype)
    other, back = change(op, inputs, np.random.default_rng(seed))
    (one, one_bound), (two, two_bound) = (
        run_with_bound(implementation, given, dtype) for given in (inputs, other)
    )
    hold(two, back(one), two_bound + back(one_bound))


def hold(one: ndarray, other: ndarray, bound: ndarray | None, words: str = "") -> None:
    """Raise Disagreement, which begins with the words, where two answers differ by more."""
    comparison = compare(one, other, bound)
    if not comparison.passed:
        raise Disagreement(f"{words}{comparison}", comparison=comparison)


def run_with_bound(
    implementation: Implementation, inputs: Inputs, dtype: str
) -> tuple[ndarray, ndarray]:
    """Compute the implementation's first output and its bound."""
    operation = implementation.operation
    output = call(
        implementation,
        arrays_of_call(implementation, inputs, dtype),
    )
    with np.errstate(all="ignore"):
        bound = bounds.bound(operation.name, inputs, implementation.precision(dtype))
    if isinstance(bound, tuple):
        output, bound = output[0], bound[0]
    return checked_output(output, bound, dtype, implementation, "output"), bound


def take_along(op: Operation, inputs: Inputs, letter: str, index: ndarray) -> Inputs:
    """Take every array at the index along its axis of this letter."""
    axes = {name: pattern.split() for name, pattern in op.axes.items()}
    return inputs | {
        name: inputs[name].take(index, axis=letters.index(letter))
        for name, letters in axes.items()
        if letter in letters
    }


def permute_batch(
    op: Operation, inputs: Inputs, rng: np.random.Generator
) -> tuple[Inputs, Callable[[ndarray], ndarray]]:
    order = np.arange(len(inputs["query"]))[::-1]
    return take_along(op, inputs, "B", order), lambda output: output[order]


def permute_heads(
    op: Operation, inputs: Inputs, rng: np.random.Generator
) -> tuple[Inputs, Callable[[ndarray], ndarray]]:
    order = np.array([2, 0, 1])
    return take_along(op, inputs, "H", order), lambda output: output[:, order]


def extra_hidden_keys(
    op: Operation, inputs: Inputs, rng: np.random.Generator
) -> tuple[Inputs, Callable[[ndarray], ndarray]]:
    """Five hidden keys in front, where a memory stands: the end-aligned rest does not move."""
    M = inputs["key"].shape[-2]
    more = take_along(op, inputs, "M", np.concatenate([np.arange(5) % M, np.arange(M)]))
    if "align" in inputs:
        more["align"] = "end"
    assert op.mask is not None
    return more | {op.mask: np.arange(M + 5)[None] >= 5}, lambda output: output


RELATIONS: dict[str, Change] = {
    "permute the batch": permute_batch,
    "a batch element alone": lambda op, inputs, rng: (
        take_along(op, inputs, "B", np.array([1])),
        lambda output: output[1:2],
    ),
    "permute the heads": permute_heads,
    "permute the keys": lambda op, inputs, rng: (
        take_along(op, inputs, "M", rng.permutation(inputs["key"].shape[-2])),
        lambda output: output,
    ),
    "extra hidden keys": extra_hidden_keys,
}


def relations_for(op: Operation) -> dict[str, Change]:
    """
    List the relations that an attention keeps: heads can change places where there are several and
    none has a slope of its own, keys where it does not matter where they stand.
    """
    broken = {
        "permute the heads": "H" not in op.sizes or op.traits.slopes,
        "permute the keys": op.traits.positional,
    }
    return {name: change for name, change in RELATIONS.items() if not broken.get(name)}


def check_hidden_slot(
    op: Operation, lengths: tuple[int, int], implementation: Implementation, dtype: str
) -> None:
    """Other finite numbers in a hidden key and value: the same bits."""
    inputs = baseline_inputs(op, lengths, dtype)
    assert op.mask is not None
    M = inputs["key"].shape[-2]
    visible = (np.arange(M) % 3 != 1)[None]
    outputs = []
    for number in (0.0, 7.0):
        changed = {
            part: np.where(visible[0][:, None], inputs[part], number) for part in ("key", "value")
        }
        given = arrays_of_call(implementation, inputs | changed | {op.mask: visible}, dtype)
        outputs.append(
            checked_output(
                call(implementation, given),
                np.zeros((*inputs["query"].shape[:-1], inputs["value"].shape[-1])),
                dtype,
                implementation,
                "output",
            )
        )
    hold(outputs[1], outputs[0], None, "a hidden key's number changes the output: ")


def check_row_constant(
    lengths: tuple[int, int], implementation: Implementation, dtype: str
) -> None:
    """
    Softmax of a score and of the score plus a constant per row; multiples of 1/8, so that the sum
    is exact.
    """
    rng = np.random.default_rng(3)
    score = round_to(np.round(8 * rng.standard_normal(lengths)) / 8, dtype)
    constant = rng.integers(-3, 4, size=(lengths[0], 1))
    (one, one_bound), (two, two_bound) = (
        run_with_bound(implementation, {"score": s, "mask": None}, dtype)
        for s in (score, score + constant)
    )
    hold(two, one, one_bound + two_bound)


def check_segments(op: Operation, implementation: Implementation, dtype: str) -> None:
    """
    Hold two segments, the second with the first as its memory, against one long segment
    (transformer_xl, clause 3).

    One layer, whose memory is its input: nothing is rounded between the segments.
    """
    recipe = fixed_recipe(op, {"N": 8, "B": 2, "L": 1, "S": 0})
    inputs = expand(replace(recipe, options=recipe.options | {"mem_len": 8}), dtype)
    whole, bound = run_with_bound(implementation, inputs, dtype)
    first, second = inputs["x"][:, :4], inputs["x"][:, 4:]
    parts = [
        run_with_bound(implementation, inputs | given, dtype)
        for given in ({"x": first}, {"x": second, "mems": [first]})
    ]
    halves, bounds_of_halves = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    hold(halves, whole, bound + bounds_of_halves)
