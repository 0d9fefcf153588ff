"""
The parts of a call that are judged, and what the specification says of them: computed once a case,
for all who take part, in threads beside whom it is computed for.

Of a forward pass eight rows of every batch entry and head, each entry's at a place of its own; of a
gradient two pairs of batch entry and head in full, and rows of the query's gradient of others. What
is no attention is judged whole.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from attnverify import bounds
from attnverify.bench.measure.cases import Case
from attnverify.bench.measure.inputs import draw_inputs, widened
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.rows import few_rows, has_independent_rows
from attnverify.inputs.recipe import Inputs
from attnverify.precision import REFERENCE, Precision

__all__ = ["BEFORE", "PAIRS", "ROWS", "Question", "Share", "ask", "begin", "draw_shares", "settle"]

ROWS = 8
"""Rows of each batch entry and head that are judged, next to each other."""

BEFORE = 2**20
"""
Most scores of a share that is judged before the timing, an additive one counted once a feature:
beyond, its last rows of queries are.
"""

PAIRS = 2**22
"""
Most pairs of a share of a timed call whose gradients are all judged: beyond, rows of the query's
gradient alone are, which the record says.
"""

Slices = dict[str, slice]

THREADS = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "judge")
"""NumPy lets others run while it computes with large arrays: the compilers, and each other."""


@dataclass(frozen=True, eq=False)
class Share:
    """
    A part of a call.

    at        where along the axes of these letters
    which     the outputs that are judged, of a gradient
    inputs    of the call that is this share alone
    answer    what the specification says of the outputs that are judged, computed in a thread
    bounds    likewise, of each arithmetic
    """

    operation: Operation
    at: Slices
    which: tuple[int, ...]
    inputs: Inputs
    answer: Future[Any]
    bounds: dict[Precision, Future[Any]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    @property
    def expected(self) -> Any:
        return self.answer.result()

    def begin(self, precision: Precision) -> Future[Any]:
        """Have the bounds computed in a thread, once for all who claim the same arithmetic."""
        if precision not in self.bounds:
            self.bounds[precision] = THREADS.submit(self.find_bound, precision)
        return self.bounds[precision]

    def bound(self, precision: Precision) -> Any:
        return self.begin(precision).result()

    def find_bound(self, precision: Precision) -> Any:
        if self.operation.exact:
            return None
        with self.lock:
            error, reference = self.errors
        with np.errstate(all="ignore"):
            found = bounds.with_reference(error(precision), reference, precision.slack)
        return chosen(found, self.which)

    @cached_property
    def errors(self) -> tuple[Callable[[Precision], Any], Any]:
        """The errors under any arithmetic, with what they share, and the specification's own."""
        error = bounds.prepare(self.operation.name, self.inputs)
        return error, error(REFERENCE)

    def of(self, outputs: Any) -> Any:
        """Take this share out of the outputs of the whole call."""
        if self.operation.is_gradient:
            axes = [x for name, x in self.operation.axes.items() if name != "d_output"]
            return [outputs[i][slices(axes[i], self.at)] for i in self.which]
        if not self.at:
            return outputs
        return outputs[slices(f"{self.operation.axes['query'][:-1]}E", self.at)]


@dataclass(frozen=True, eq=False)
class Question:
    """
    What all who take part are asked before anything is timed: the inputs, and the shares of the
    answer that are judged.
    """

    case: Case
    inputs: Inputs
    asked: Inputs
    """The inputs; of a gradient, with what arrives at the output in one batch entry alone."""
    shares: tuple[Share, ...]


def ask(case: Case, device: str = "cpu", seed: int = 1) -> Question:
    """Draw the inputs of a case and compute what is judged of the answers."""
    inputs, rng = draw_inputs(case, seed, device), np.random.default_rng(seed)
    operation = CATALOGUE[case.timed]
    if not operation.is_gradient:
        return Question(case, inputs, inputs, tuple(forward_shares(operation, inputs, rng)))
    letters, rows = separate_letters(operation, case), count_rows(operation, case)
    entry = slice_of(int(rng.integers(case.sizes["B"])))
    d_output = inputs["d_output"] * 0
    d_output[entry, ..., -rows:, :] = inputs["d_output"][entry, ..., -rows:, :]
    asked = inputs | {"d_output": d_output}
    found = []
    for head in drawn_heads(letters, case, rng):
        at = {"B": entry, **head}
        last = last_rows(cut(operation, asked, at), rows)
        which = tuple(range(len(operation.axes) - 1))
        found.append(make_share(operation, at | {"N": slice(-rows, None)}, which, last))
    return Question(case, inputs, asked, tuple(found))


def draw_shares(
    case: Case, inputs: Inputs, rng: np.random.Generator
) -> tuple[tuple[Share, ...], str]:
    """
    Draw the shares of a timed call now, and say why gradients by keys are not among them, if they
    are not.
    """
    operation = CATALOGUE[case.timed]
    if not has_independent_rows(CATALOGUE[case.operation]):
        return tuple(forward_shares(operation, inputs, rng)), ""
    entries = sorted(set(rng.integers(case.sizes["B"], size=2).tolist()))
    found = list(shares_of_rows(operation, inputs, rng, entries))
    if not operation.is_gradient:
        return tuple(found), ""
    heads = heads_in_full(operation, case, rng)
    if reason := why_too_much(case, inputs, "".join(heads[0])):
        return tuple(found), reason
    single = "B" not in case.sizes or case.sizes["B"] == 1
    axes = [pattern for name, pattern in operation.axes.items() if name != "d_output"]
    which = tuple(i for i, letters_of in enumerate(axes) if single or "B" in letters_of)
    for head in heads:
        at = {"B": slice_of(int(rng.integers(case.sizes["B"]))), **head}
        found.append(make_share(operation, at, which, cut(operation, inputs, at)))
    return tuple(found), ""


def begin(shares: Iterable[Share], precision: Precision) -> None:
    """Have the bounds of all shares computed, while who claims this arithmetic is compiled."""
    for share in shares:
        share.begin(precision)


def settle(shares: Iterable[Share]) -> None:
    """Wait for all that was begun: nothing of it runs beside a clock."""
    for share in shares:
        wait([share.answer, *share.bounds.values()])


def why_too_much(case: Case, inputs: Inputs, letters: str) -> str:
    """Say why no pair of batch entry and head is judged whole; "" where some are."""
    mask = inputs.get("mask", inputs.get("visible"))
    if mask is not None and mask.ndim > 2:
        return "a mask of its own for each head"
    pairs = count_pairs(case, letters)
    return f"{pairs} pairs, more than {PAIRS}" if pairs > PAIRS else ""


def forward_shares(
    operation: Operation, inputs: Inputs, rng: np.random.Generator
) -> Iterator[Share]:
    """Rows of every batch entry and head; all of it, where rows are not independent."""
    if has_independent_rows(operation):
        entries = range(inputs["query"].shape[0])
        yield from shares_of_rows(operation, inputs, rng, [*entries, *([0] * (3 - len(entries)))])
    else:
        inputs = widened(inputs)
        yield make_share(operation, {}, (), inputs)


def shares_of_rows(
    operation: Operation, inputs: Inputs, rng: np.random.Generator, entries: list[int]
) -> Iterator[Share]:
    """Eight rows of these batch entries: the last, the first, and rows drawn in between."""
    rows = min(ROWS, inputs["query"].shape[-2])
    most = inputs["query"].shape[-2] - rows
    places = [most, 0, *rng.integers(0, most + 1, size=len(entries)).tolist()]
    for entry, first in zip(entries, places, strict=False):
        at = {"B": slice_of(entry)}
        alone = few_rows(operation, cut(operation, inputs, at), first, rows)
        yield make_share(operation, at | {"N": slice(first, first + rows)}, (0,), alone)


def make_share(operation: Operation, at: Slices, which: tuple[int, ...], inputs: Inputs) -> Share:
    """The share, while threads find what the specification says of it."""
    return Share(operation, at, which, inputs, THREADS.submit(answer, operation, which, inputs))


def answer(operation: Operation, which: tuple[int, ...], inputs: Inputs) -> Any:
    """What the specification says of the outputs that are judged."""
    with np.errstate(all="ignore"):
        return chosen(operation.reference(**inputs), which)


def cut(operation: Operation, inputs: Inputs, at: Slices) -> Inputs:
    """The inputs of a part of the call, in float64; masks that all share stay whole."""
    found = dict(inputs)
    for name, pattern in operation.axes.items():
        found[name] = inputs[name][slices(pattern, at)]
    for name in ("mask", "visible"):
        mask = inputs.get(name)
        if mask is not None and mask.ndim > 2 and mask.shape[0] > 1:
            found[name] = mask[at["B"]]
    return dict(widened(found))


def last_rows(inputs: Inputs, rows: int) -> Inputs:
    """The last rows of queries: of an end-aligned operation they are a small one."""
    few = inputs | {name: inputs[name][..., -rows:, :] for name in ("query", "d_output")}
    for name in ("mask", "visible"):
        if inputs.get(name) is not None:
            few[name] = inputs[name][..., -rows:, :]
    return few


def separate_letters(operation: Operation, case: Case) -> str:
    """H where heads do not mix and are alike."""
    return "H" if "H" in case.sizes and not operation.traits.slopes else ""


def drawn_heads(letters: str, case: Case, rng: np.random.Generator) -> list[Slices]:
    """Two heads; all of them at once where they cannot be taken apart."""
    if "H" not in letters:
        return [{}]
    return [{"H": slice_of(int(head))} for head in rng.permutation(case.sizes["H"])[:2]]


def heads_in_full(operation: Operation, case: Case, rng: np.random.Generator) -> list[Slices]:
    """
    Choose heads of a timed call that are judged in full: two. Where each has a slope of its own all
    are, or if they are too many the last of a power of two, whose slope a single head has too.
    """
    letters, H = separate_letters(operation, case), case.sizes.get("H", 1)
    if operation.traits.slopes and H & (H - 1) == 0 and count_pairs(case, letters) > PAIRS:
        return [{"H": slice_of(H - 1)}]
    return drawn_heads(letters, case, rng)


def count_pairs(case: Case, letters: str) -> int:
    """Pairs of a batch entry, of one head where heads are apart."""
    heads = 1 if "H" in letters else case.sizes.get("H", 1)
    return heads * case.sizes["N"] * case.sizes["M"]


def count_rows(operation: Operation, case: Case) -> int:
    """Count the rows of queries that are judged in full, of as many scores as are taken on."""
    scores = count_pairs(case, separate_letters(operation, case)) * case.sizes.get("A", 1)
    return min(case.sizes["N"], max(ROWS, BEFORE * case.sizes["N"] // scores))


def chosen(outputs: Any, which: tuple[int, ...]) -> Any:
    """The outputs that are judged, of several."""
    return [outputs[i] for i in which] if isinstance(outputs, tuple) and which else outputs


def slices(pattern: str, at: Slices) -> tuple[slice, ...]:
    """Where a share lies in an array of these axes."""
    return tuple(at.get(letter, slice(None)) for letter in pattern.split())


def slice_of(place: int) -> slice:
    """One place along an axis, which stays."""
    return slice(place, place + 1)
