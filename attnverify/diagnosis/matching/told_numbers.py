"""
Numbers in place of minus infinity that no call tells apart: the one that stands in the file is
told, and no digits where none does.
"""

import ast
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from attnverify.backends.implementation import Implementation
from attnverify.backends.source import parse_source
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.candidates import Candidate
from attnverify.diagnosis.mistakes.sentinels import NUMBERS

AT_A_NUMBER = {
    at.format(number=number): (at, -number)
    for at in (say.HIDDEN_AT, say.HIDDEN_AT_BUT, say.BOOLEAN_HIDDEN_AT)
    for number in NUMBERS
}
AT_SOME = {
    say.HIDDEN_AT: say.HIDDEN_AT_SOME,
    say.HIDDEN_AT_BUT: say.HIDDEN_AT_SOME_BUT,
    say.BOOLEAN_HIDDEN_AT: say.BOOLEAN_HIDDEN_AT_SOME,
}
"""The same without its digits."""

Found = tuple[Candidate, float]


def of_the_file_first(best: Sequence[Found], implementation: Implementation) -> list[Found]:
    """The best, those at numbers that stand in the file before those at others."""
    if len(best) < 2 or all(number_of(each) is None for each in best):
        return [*best]
    own = sizes_in(implementation)
    return sorted(best, key=lambda each: number_of(each) not in (None, *own))


def without(best: Sequence[Found], other: Found, implementation: Implementation) -> list[Found]:
    """
    The best but for another that says the same; no digits are left of the first's number where
    another number would do and it does not stand in the file.
    """
    (first, share), *_ = best
    kept = [each for each in best if each is not other]
    number = number_of(best[0])
    if number is None or number_of(other) in (None, number) or number in sizes_in(implementation):
        return kept
    parts, words = first.parts, first.words
    for one in mistakes_of(first):
        if one in AT_A_NUMBER:
            some = AT_SOME[AT_A_NUMBER[one][0]]
            words, parts = words.replace(one, some), tuple(some if x == one else x for x in parts)
    return [(replace(first, words=words, parts=parts), share), *kept[1:]]


def of_one_kind_once(best: Sequence[Found], implementation: Implementation) -> list[Found]:
    """The best without those that name another number where the first names one, or some."""
    left = [*best]
    for other in best[1:]:
        if kinds_of(other) & kinds_of(best[0]):
            left = without(left, other, implementation)
    return left


def kinds_of(found: Found) -> set[str]:
    """Which kinds of a number in place of minus infinity a candidate names."""
    told = {AT_A_NUMBER[x][0] if x in AT_A_NUMBER else x for x in mistakes_of(found[0])}
    return {at for at, some in AT_SOME.items() if {at, some} & told}


def number_of(found: Found) -> float | None:
    """The size of the number in place of minus infinity that a candidate names."""
    return next((AT_A_NUMBER[x][1] for x in mistakes_of(found[0]) if x in AT_A_NUMBER), None)


def mistakes_of(candidate: Candidate) -> tuple[str, ...]:
    return candidate.parts or (candidate.words,)


def sizes_in(implementation: Implementation) -> set[float]:
    """The numbers in the text of an implementation's file, without their signs."""
    with suppress(OSError, SyntaxError):
        text = Path(parse_source(implementation.backend.source).place).read_text()
        found = (getattr(part, "value", None) for part in ast.walk(ast.parse(text)))
        return {float(x) for x in found if isinstance(x, (int, float))}
    return set()
