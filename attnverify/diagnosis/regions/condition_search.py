"""
Separation: the conditions of :mod:`attnverify.inputs.conditions` that tell the cases that failed
from those that passed.

Every condition is true of all failures. Which of them to join is a matter of description length: a
condition costs a few bits, the unusual ones more, and a pass inside the region costs what it takes
to say which case it is. So a condition that holds by chance of a few failures, or keeps a single
pass out, does not pay.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from math import floor, isfinite, log2, log10

from numpy import ndarray

from attnverify.catalogue.field_words import FIELDS, LAYOUT, TRUTHS, say_field
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.conditions import SENTENCES, field_of, is_absent, parse_condition
from attnverify.inputs.measures.scores import Case, hidden_score_lead, largest_score, lowest_row
from attnverify.inputs.memory_layouts import LAYOUTS
from attnverify.inputs.recipe import layout_kinds

MOST_CONDITIONS = 3
JOINT = 5
"""Bits for each further condition: a line that one can remember is worth a few exceptions."""

MOST_TRIED = 60
"""Of so many conditions, those that let the fewest passes in, every conjunction is tried."""


def find_conjunction(
    failing: Sequence[Case], passing: Sequence[Case], without: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """
    Find the conditions that together describe the failures in the fewest bits, ``without`` some and
    those that speak of some topics.
    """
    let_in: dict[int, tuple[float, str]] = {}
    for bits, text in (
        sorted(candidates(failing, passing), key=lambda pair: pair[0]) if passing else ()
    ):
        holds = parse_condition(text)
        if not without & {text, holds.topic} and all(map(holds, failing)):
            passes = sum(1 << place for place, case in enumerate(passing) if holds(case))
            let_in.setdefault(passes, (bits, text))
    return shortest_conjunction(prune_dominated(let_in), len(failing), len(passing))


def prune_dominated(let_in: dict[int, tuple[float, str]]) -> dict[int, tuple[float, str]]:
    """Without the conditions that let in all that an earlier one lets in, which costs no more."""
    kept: dict[int, tuple[float, str]] = {}
    for passes, priced in let_in.items():
        if not any(other & passes == other for other in kept):
            kept[passes] = priced
    return {passes: kept[passes] for passes in sorted(kept, key=int.bit_count)[:MOST_TRIED]}


def shortest_conjunction(
    let_in: dict[int, tuple[float, str]], failing: int, passing: int
) -> tuple[str, ...]:
    """Return the conjunction of the fewest bits."""
    best, chosen = description_length(passing, failing), tuple[int, ...]()
    for length in range(1, MOST_CONDITIONS + 1):
        for masks in combinations(let_in, length):
            left = (1 << passing) - 1
            for mask in masks:
                left &= mask
            bits = (
                description_length(left.bit_count(), failing)
                + sum(let_in[mask][0] for mask in masks)
                + (length - 1) * JOINT
            )
            if bits < best:
                best, chosen = bits, masks
    return tuple(let_in[mask][1] for mask in chosen)


def description_length(passes: int, failures: int) -> float:
    """
    Return the bits that say which cases of a region pass: its size times the entropy of passing.
    """
    total = passes + failures
    return sum(-count * log2(count / total) for count in (passes, failures) if count)


# Which conditions to try


def candidates(failing: Sequence[Case], passing: Sequence[Case]) -> Iterator[tuple[float, str]]:
    """Conditions worth trying on these cases, with their price in bits."""
    known = "NMHDEBSPFQKAL"
    shared = set.intersection(*({*case.recipe.sizes} for case in failing))
    is_outside = CATALOGUE[failing[0].recipe.operation].outside is not None
    own = sorted(shared - {*known}) if is_outside else []
    letters = [letter for letter in (*known, *own) if letter in shared]
    arrays = failing[0].inputs.items()
    named = [name for name, x in arrays if isinstance(x, ndarray)]
    names = ("an input", *(named if any(map(lie_apart, failing)) else []))
    yield from ((OFTEN_TRUE.get(text, 3), text) for text in SENTENCES)
    for one, two in combinations(letters, 2):
        is_ordered = any(kind.issuperset((one, two)) for kind in KINDS)
        signs = ("!=", "==", *((">", "<", ">=", "<=") if is_ordered else ()))
        bits = 4 if one + two in ("NM", "DE") else 7
        yield from ((bits, f"{one} {sign} {two}") for sign in signs)
    yield from (
        (5 if letter == "H" else 9, f"{letter} is {no} power of two")
        for letter in letters
        for no in ("no", "a")
    )
    yield from fields(failing)
    yield from options((*failing, *passing))
    yield from ((5, f"{name} is {LAYOUT[kind]}") for kind in LAYOUTS for name in names)
    yield from ((5, f"{name} is strided along its last axis") for name in names)
    yield from ((6, f"{name} is not contiguous") for name in names)
    for letter in letters:
        seen = [case.recipe.sizes.get(letter, 0) for case in passing]
        yield from sizes(letter, [case.recipe.sizes[letter] for case in failing], seen)
    for one, two in PRODUCTS:
        if one in letters and two in letters:
            count = partial(count_product, one, two)
            failed, passed = ([*map(count, cases)] for cases in (failing, passing))
            found = sizes(f"{one}*{two}", failed, passed)
            yield from ((bits + 2, text) for bits, text in found if "=" not in text)
    yield from (
        (bits, f"{letter} % {k} {test}")
        for letter in letters
        for k in (64, 32, 16, 8, 4, 2)
        for bits, test in ((8, "!= 0"), (8, "== 0"), (10, "== 1"))
    )
    if {"N", "M"} <= {*letters}:
        yield from ((8, f"N, M are multiples of {k}") for k in (64, 32, 16, 8))
    for words, measure in MEASURES.items():
        yield from (
            (6, text)
            for text in threshold_conditions(
                words,
                *([measure(case) for case in cases] for cases in (failing, passing)),
            )
        )


def lie_apart(case: Case) -> bool:
    """Whether the arrays of a call lie in memory otherwise than each other."""
    return len({*layout_kinds(case.recipe, len(case.inputs))}) > 1


KINDS = tuple(map(frozenset, ("NMSP", "DEFQKA")))
"""
Lengths, and widths: of two of one kind a kernel may ask which is the larger. Sizes of two kinds are
equal in a shape that is misread, and the larger by chance.
"""
PRODUCTS = (("B", "H"),)
"""Sizes whose product a kernel may hang on: how many blocks of its grid."""


def count_product(one: str, two: str, case: Case) -> int:
    return case.recipe.sizes.get(one, 0) * case.recipe.sizes.get(two, 0)


OFTEN_TRUE = {"a row sees a key": 10}
"""What is true of nearly every case is worth telling only where it keeps many passes out."""

KNOWN = {
    "a score exceeds ": (11, 88, 709),
    "all scores of a row lie below -": (17, 103, 745),
    "a hidden score leads by ": (1e4, 32000, 65500, 1e9, 1e30),
}
"""
Where exponentials overflow in float16, float32 and float64, and where they are 0; sentinels in
place of -inf.
"""

MEASURES: dict[str, Callable[[Case], float]] = {
    "a score exceeds ": largest_score,
    "all scores of a row lie below -": lowest_row,
    "a hidden score leads by ": hidden_score_lead,
}


def fields(failing: Sequence[Case]) -> Iterator[tuple[float, str]]:
    """
    What a field of the recipe is in every failure; that it is not there is a sentence. What it is
    in none is a matter of chance but for a few values: what no draw of few shows of a failure may
    still show it.
    """
    for path in (*FIELDS, *TRUTHS):
        failed = {str(field_of(case.recipe, path)) for case in failing}
        if len(failed) == 1 and failed != {ABSENT}:
            yield 5, say_field(path, "=", *failed)
    for path, value in EXCLUDED:
        yield 7, say_field(path, "!=", value)


def options(cases: Sequence[Case]) -> Iterator[tuple[float, str]]:
    """Options that some cases have and others have not, or of which they have one side alone."""
    for name in sorted({name for case in cases for name in case.recipe.options}):
        values = [case.recipe.options.get(name) for case in cases]
        if any(map(is_absent, values)):
            yield 4, f"{name} is given"
            yield 5, f"{name} is not given"
        if any(isinstance(value, list | tuple) and None in value for value in values):
            yield 5, f"one side of {name} is None"


ABSENT = "None"
EXCLUDED = (
    *(("layout.kind", "contiguous"), ("options.mem_len", "0"), ("poison", "finite")),
    ("mask.form", "bool"),
)
"""What a kernel may do otherwise for one value than for all the others."""


def sizes(letter: str, failed: list[int], passed: list[int]) -> Iterator[tuple[float, str]]:
    """Return the one size of all failures, or the sizes beyond which they lie."""
    least, most = min(failed), max(failed)
    if least == most:
        yield 8, f"{letter} == {least}"
    yield 6, f"{letter} != 1"
    below = max((size for size in passed if size < least), default=None)
    if below is not None:
        yield 6, f"{letter} > {below}"
        yield from ((7, f"{letter} > {k}") for k in TILES if below < k < least)
    above = min((size for size in passed if size > most), default=None)
    if above is not None:
        yield 6, f"{letter} < {above}"


TILES = (16, 32, 64, 128, 256)
"""Sizes beyond which a kernel may well do something else."""


def threshold_conditions(words: str, failed: list[float], passed: list[float]) -> Iterator[str]:
    """
    Return a number between the passes and the least failure at which kernels are known to change,
    else a round one above 1.
    """
    least = min(failed)
    below = max((number for number in passed if number < least), default=1.0)
    if known := [number for number in KNOWN[words] if below <= number < least]:
        yield f"{words}{known[0]:g}"
    elif below >= 1 and isfinite(below):
        digits = 10.0 ** (floor(log10(below)) - 1)
        number = (floor(below / digits) + 1) * digits
        if number < least:
            yield f"{words}{number:.2g}"
