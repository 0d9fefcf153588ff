"""
Known failures: one line each in a file of the user's own, with a reason. They are strict: an
unexpected pass is an error.

    # implementation  dtype    aspect                              : reason
                      [replay <hash>]
    alibi_attention   float16  values                              : slopes are rounded before the
                      product
    softmax_*         *        refusals                            : raises TypeError, PyTorch's
                      convention
    alibi_attention   *        values when a row sees no key       : gives NaN there
                      [replay 1f0c2d3e4a5b]
    alibi_attention   *        values when N > M and mask.form=bool: [limitation] square masks alone
                      are supported

Without ``when`` a line speaks of the whole cell. With it, it speaks of a region of the cases:
whatever fails there is known, and the rest stays judged. Conditions are joined by "and": a sentence
(``a row sees no key``, ``H is no power of two``, ``N, M are multiples of 16``, ``query is
transposed``, ``soft_cap is given``, ``one side of window is None``, ``a score exceeds 88``, ``a
hidden score leads by 1e4``, see SENTENCES and PATTERNS);
a comparison of sizes and numbers (``N > M``, ``H != 8``, ``D % 8 != 0``, ``B*H > 15``); or a field
of the recipe, in words (``hidden slots hold NaN``, ``a boolean mask is given``, see field_words.py)
or by its name (``poison=finite``, ``mask.form!=lowest``, ``options.align=end``). A reason may begin
with its kind: ``[limitation]``, where the author promises no more, or ``[nonconformance]``, where
the implementation does something else than the specification; the two are counted apart.
"""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any

from numpy import ndarray

from attnverify.catalogue.field_words import LAYOUT, parse_sentence
from attnverify.inputs.measures.scores import (
    Case,
    absent_parts,
    gradient_overflow,
    has_hidden_gap,
    hidden_score_lead,
    holds_nonfinite,
    largest_score,
    lowest_row,
    pairs_of_case,
    score_overflow,
)
from attnverify.inputs.memory_layouts import LAYOUTS, arrange
from attnverify.inputs.recipe import Recipe, layout_kinds

COMPARISON = re.compile(
    r"([A-Z](?:\*[A-Z])?|\d+)(?:\s*%\s*([1-9]\d*))?\s*(<=|>=|==|!=|<|>)\s*([A-Z]|\d+)"
)
FIELD = re.compile(r"([\w.]+)(!?=)(\S.*)")
OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


Predicate = Callable[[Case], bool]


@dataclass(frozen=True)
class Condition:
    """
    One condition of a region: its text, and whether it holds of a case.

    subjects  what it speaks of: sizes and fields without their numbers, sentences as a whole
    topic     where in an input that lies: "size", "mask", "layout", "values", "poison", "dropout",
              "options"
    excludes  whether it only says what a field is not
    """

    text: str
    predicate: Predicate
    subjects: frozenset[str]
    topic: str
    excludes: bool = False

    def __call__(self, case: Case) -> bool:
        return self.predicate(case)


@lru_cache(maxsize=4096)
def parse_condition(text: str) -> Condition:
    """One condition of a region."""
    if text in SENTENCES:
        topic = "dropout" if "dropout" in text else "mask"
        subject = "a hidden pair" if text in OF_HIDDEN_PAIRS else text
        return Condition(text, SENTENCES[text], frozenset({subject}), topic)
    for pattern, (topic, holds) in PATTERNS.items():
        if match := re.fullmatch(pattern, text):
            number = match.groupdict().get("number", "")
            spoken = filter(str.isupper, match.groups())
            subjects = spoken if topic == "size" else [text.removesuffix(number).strip()]
            return Condition(text, partial(holds, *match.groups()), frozenset(subjects), topic)
    if match := COMPARISON.fullmatch(text):
        left, modulus, sign, right = match.groups()
        letters = frozenset(filter(str.isupper, left + right))
        compare = partial(sizes_compare, left=left, sign=sign, right=right, modulus=modulus)
        return Condition(text, compare, letters, "size")
    if found := parse_sentence(text) or parse_field(text):
        path, sign, wanted = found
        compare = partial(field_is, path=path, wanted=wanted, excludes=sign == "!=")
        topic = {"padding": "mask"}.get(path.partition(".")[0], path.partition(".")[0])
        return Condition(text, compare, frozenset({path}), topic, sign == "!=")
    sentences = ", ".join(map(repr, SENTENCES))
    raise ValueError(
        f"when: wanted {sentences}, a comparison like 'N > M' or a field like 'poison=finite', got "
        f"{text!r}"
    )


def parse_field(text: str) -> tuple[str, ...] | None:
    """Return the field, the sign and the value of ``poison=finite``."""
    match = FIELD.fullmatch(text)
    return match.groups() if match else None


def has_layout(name: str, words: str, case: Case) -> bool:
    """Whether an argument (or any, "an input") lies so in memory."""
    inputs = case.inputs
    kind = next(kind for kind, said in LAYOUT.items() if said == words)
    laid = dict(zip(inputs, layout_kinds(case.recipe, len(inputs)), strict=True))
    return kind in laid.values() if name == "an input" else laid.get(name) == kind


def has_gaps(name: str, case: Case) -> bool:
    """Tell whether an argument (or any) does not lie row after row in memory."""
    return any(not x.flags.c_contiguous for x in laid_out(name, case))


def laid_out(name: str, case: Case) -> Iterator[ndarray]:
    """Yield an argument (or all, "an input") as it lies in memory."""
    inputs = case.inputs
    laid = zip(inputs.items(), layout_kinds(case.recipe, len(inputs)), strict=True)
    for (each, x), kind in laid:
        if name in ("an input", each) and isinstance(x, ndarray):
            yield arrange(lambda a, _: a, x, "", kind)


def power_of_two(letter: str, no: str, case: Case) -> bool:
    size = case.recipe.sizes.get(letter, 0)
    return size > 0 and (size & (size - 1) == 0) == (no == "a")


def are_multiples(one: str, other: str, number: str, case: Case) -> bool:
    sizes = case.recipe.sizes
    return all(letter in sizes and sizes[letter] % int(number) == 0 for letter in (one, other))


def is_absent(option: Any) -> bool:
    return option is None or option is False


def is_one_sided(name: str, case: Case) -> bool:
    """Tell whether one side of an option of two, and not the other, is None."""
    sides = case.recipe.options.get(name)
    return isinstance(sides, list | tuple) and 0 < [*sides].count(None) < len(sides)


SENTENCES: dict[str, Predicate] = {
    "a row sees no key": lambda case: not pairs_of_case(case).any(axis=-1).all(),
    "a row sees a key": lambda case: bool(pairs_of_case(case).any()),
    "a key is hidden from every row": lambda case: not pairs_of_case(case).any(axis=-2).all(),
    "a pair is hidden": lambda case: not pairs_of_case(case).all(),
    "a hidden key stands between visible ones": has_hidden_gap,
    "every part of a row is absent": lambda case: bool(absent_parts(case).all(axis=0).any()),
    "a part is absent": lambda case: bool(absent_parts(case).any()),
    "a hidden slot holds NaN or infinity": holds_nonfinite,
    "a hidden score overflows": score_overflow,
    "the gradient of a hidden weight overflows": gradient_overflow,
    "a mask is given": lambda case: case.recipe.mask is not None,
    "a float mask is given": lambda case: (
        case.recipe.mask is not None and case.recipe.mask["form"] != "bool"
    ),
    "a padding mask is given": lambda case: case.recipe.padding is not None,
    "dropout is given": lambda case: case.recipe.dropout is not None,
    "no mask is given": lambda case: case.recipe.mask is None,
    "no padding mask is given": lambda case: case.recipe.padding is None,
    "no dropout is given": lambda case: case.recipe.dropout is None,
}
OF_HIDDEN_PAIRS = ("a row sees no key", "a key is hidden from every row", "a pair is hidden")
"""What a hidden pair is to the row and to the key: one subject."""
"""
What a case shows, in words; where a key is hidden from every row of its head, poison may stand in
it.
"""

NUMBER = r"(?P<number>-?\d[\de.+]*)"
PATTERNS: dict[str, tuple[str, Callable[..., bool]]] = {
    r"([A-Z]) is (a|no) power of two": ("size", power_of_two),
    r"([A-Z]), ([A-Z]) are multiples of ([1-9]\d*)": ("size", are_multiples),
    rf"(an input|\w+) is ({'|'.join(map(LAYOUT.__getitem__, LAYOUTS))})": ("layout", has_layout),
    r"(an input|\w+) is strided along its last axis": (
        "layout",
        lambda name, case: any(
            abs(x.strides[-1]) != x.itemsize
            for x in laid_out(name, case)
            if x.ndim and x.shape[-1] > 1
        ),
    ),
    r"(an input|\w+) is not contiguous": ("layout", has_gaps),
    r"(\w+) is (not |)given": (
        "options",
        lambda name, no, case: is_absent(case.recipe.options.get(name)) == bool(no),
    ),
    r"one side of (\w+) is None": ("options", is_one_sided),
    rf"a hidden score leads by {NUMBER}": (
        "mask",
        lambda least, case: hidden_score_lead(case) > float(least),
    ),
    rf"all scores of a row lie below -{NUMBER}": (
        "values",
        lambda least, case: lowest_row(case) > float(least),
    ),
    rf"a score exceeds {NUMBER}": (
        "values",
        lambda least, case: largest_score(case) > float(least),
    ),
}
"""Sentences with a size, an argument or a number in them: their topic, and whether they hold."""


def sizes_compare(case: Case, left: str, sign: str, right: str, modulus: str | None) -> bool:
    sizes = case.recipe.sizes
    if not all(letter in sizes for letter in left + right if letter.isupper()):
        return False
    one, two = (
        prod(int(x) if x.isdigit() else sizes[x] for x in side.split("*")) for side in (left, right)
    )
    return OPERATORS[sign](one % int(modulus) if modulus else one, two)


def field_is(case: Case, path: str, wanted: str, excludes: bool) -> bool:
    return (str(field_of(case.recipe, path)) == wanted) != excludes


def field_of(recipe: Recipe, path: str) -> Any:
    first, *rest = path.split(".")
    place: Any = getattr(recipe, first, None)
    for name in rest:
        place = place.get(name) if isinstance(place, dict) else None
    return (
        tuple(place) if isinstance(place, list) else place
    )  # a recipe that was written down has lists
