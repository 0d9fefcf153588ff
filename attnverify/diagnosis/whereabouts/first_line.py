"""
The first line of a file whose variables differ from the specification's.

What the variables of a file hold in a call, line by line, is held against what those of the
specification's own text hold in the same call. A variable that equals one of them in every call
that passes, and does not in those that fail, is where the two part; what was computed before it
agrees. Where all calls fail, the last variable is told that the specification has too. Nothing is
said of what equals none, nor of a file that computes elsewhere (a kernel).
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy import ndarray

import attnverify.spec
from attnverify.backends.implementation import Implementation
from attnverify.backends.source import parse_source
from attnverify.catalogue.pytrees import leaves
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.inputs.masks import scores_shape
from attnverify.judge.comparison import is_within
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import Observation, observe_answer
from attnverify.precision import FORMATS

CALLS = 3
"""So many calls that pass and so many that fail are looked into."""
MOST_NUMBERS, FEW_NUMBERS, FEW_AXES = 6_000, 4, 3
"""Larger variables are not looked at, nor smaller parts of them, nor parts of parts of so few."""
ROUNDINGS, CLEARLY = 2**12, 1 / 16
"""
Two variables are one if they differ by no more roundings of their largest number, and differ if no
two numbers are nearer than a share of it.
"""
MOST_TIMES, MOST_LINES = 8, 50_000
"""One variable of one line is looked at so often, and so many lines are followed."""
MOST_PAIRS = 4_000
"""The specification is asked for so many pairs of rows and keys: it goes row by row."""
LAW = str(Path(attnverify.spec.__file__).parent)
ELSEWHERE = ("arrays.py", "domains.py")
"""Files of the specification that are not formulas."""


@dataclass(frozen=True)
class Held:
    """What a variable holds behind a line, for the so many-th time."""

    line: int
    name: str
    time: int
    value: ndarray

    @cached_property
    def forms(self) -> list[ndarray]:
        """
        The whole, and what stands at one place of an axis or of the first two: loops go over those.
        """
        x, axes = self.value, range(self.value.ndim)
        parts = [x.take(i, axis) for axis in axes for i in range(x.shape[axis])]
        parts += [x[at] for at in np.ndindex(x.shape[:2])] if x.ndim > FEW_AXES else []
        return [x, *(part for part in parts if part.size >= FEW_NUMBERS)]

    @property
    def key(self) -> tuple[int, str, int]:
        return self.line, self.name, self.time


def held_in(is_own: Callable[[str], bool], call: Callable[[], object]) -> list[Held]:
    """List what the variables of functions in files of one's own hold in a call, as it comes."""
    found, times, steps = list[Held](), Counter[tuple[int, str]](), iter(range(MOST_LINES))

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not is_own(code.co_filename) or code.co_name.startswith("<"):
            return None
        before, line = dict[str, ndarray](), frame.f_lineno

        def keep(name: str, x: Any) -> None:
            value = as_array(x) if times[line, name] < MOST_TIMES else None
            if value is not None and not is_same(before.get(name), value):
                before[name] = value
                times[line, name] += 1
                found.append(Held(line, name, times[line, name], value))

        def follow(frame: FrameType, event: str, result: Any) -> Any:
            nonlocal line
            for name, x in tuple(frame.f_locals.items()):
                keep(say.VARIABLE.format(name=name), x)
            if event == "return":
                several = [*leaves(result)]
                for place, x in enumerate(several, 1):
                    template = say.RETURNED if len(several) == 1 else say.RESULT
                    keep(template.format(function=code.co_name, place=place), x)
            line = frame.f_lineno
            return follow if next(steps, None) is not None else None

        return follow(frame, event, None)

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return found


def as_array(x: Any) -> ndarray | None:
    """A variable in float64 without axes of one; None for what tells nothing."""
    try:
        if hasattr(x, "detach"):
            x = x.detach().cpu()
            x = (x.double() if x.is_floating_point() else x).numpy()
        if not isinstance(x, ndarray) or x.dtype.kind not in "bfiu" or x.size > MOST_NUMBERS:
            return None
        value = np.array(x, np.float64).squeeze()
    except Exception:  # a tensor may be of any subclass
        return None
    return value if len(np.unique(value)) > 1 else None


def is_same(one: ndarray | None, other: ndarray) -> bool:
    return one is not None and np.array_equal(one, other, equal_nan=True)


def in_any_order(x: ndarray) -> tuple[int, ...]:
    return tuple(sorted(x.shape))


def agree(own: ndarray, law: ndarray, share: float) -> bool:
    """
    Whether two arrays hold the same numbers to a share of the largest, their axes in any order, or
    one mask inverted.
    """
    if in_any_order(own) != in_any_order(law):
        return False
    finite = law[np.isfinite(law)]
    bound = np.full(law.shape, share * np.abs(finite).max(initial=0.0))
    forms = [own, 1 - own] if set(np.unique(own)) <= {0.0, 1.0} else [own]
    return any(
        form.transpose(order).shape == law.shape and is_within(form.transpose(order), law, bound)
        for form in forms
        for order in permutations(range(own.ndim))
    )


def first_wrong_line(
    implementation: Implementation,
    failing: Sequence[Observation],
    passed: Sequence[Observation],
    budget: CallBudget,
) -> str:
    """Say which line of a file differs first, and from what; "" where nothing shows it."""
    found, wrong = find_parting(implementation, failing, passed, budget)
    if found is None:
        return last_agreeing(wrong)
    template = say.FIRST_LINE if found.before else say.FIRST_LINE_ALONE
    return template.format(**vars(found))


def find_parting(
    implementation: Implementation,
    failing: Sequence[Observation],
    passed: Sequence[Observation],
    budget: CallBudget,
) -> "tuple[Parting | None, list[Looked]]":
    """Find where most calls that fail part, and what was seen in them."""
    backend = implementation.backend
    if backend.machine is not None or backend.by_name or implementation.operation.exact:
        return None, []
    right = [x for o in few(passed)[-CALLS:] for x in looked_into(implementation, o, budget)]
    known = known_names(right)
    wrong = [x for o in few(failing)[:CALLS] for x in looked_into(implementation, o, budget)]
    found = [x for looked in wrong if (x := first_parting(known, looked))]
    lines = Counter(x.line for x in found).most_common(1)
    first = [x for x in found for line, times in lines if x.line == line and 2 * times > len(found)]
    return (first[0] if first else None), wrong


def last_agreeing(wrong: Sequence["Looked"]) -> str:
    """Say which variable of calls that fail is the last that the specification has, or ""."""
    known, told = known_names(wrong), ""
    for held in wrong[0].own if wrong else []:
        names = known.get(held.key)
        if names and not wrong[0].is_among(held, [*wrong[0].given, *wrong[0].results]):
            told = say.LAST_LINE.format(line=held.line, name=held.name, law=names[0])
    return told


@dataclass(frozen=True)
class Looked:
    """What the variables of the file and those of the specification hold in one call."""

    own: list[Held]
    law: list[Held]
    given: list[ndarray]
    results: list[ndarray]
    near: float

    def is_among(self, held: Held, others: Iterable[ndarray]) -> bool:
        return any(agree(held.value, x, self.near) for x in others)

    @cached_property
    def forms(self) -> dict[tuple[int, ...], list[tuple[str, ndarray]]]:
        """The specification's variables and what stands in them, with their names, by shape."""
        found = defaultdict[tuple[int, ...], list[tuple[str, ndarray]]](list)
        for held in self.law:
            for form in held.forms:
                found[in_any_order(form)].append((held.name, form))
        return found

    def like(self, held: Held) -> list[tuple[str, ndarray]]:
        return self.forms.get(in_any_order(held.value), [])

    def names_of(self, held: Held) -> list[str]:
        """What a variable is, in the names of the specification's variables, the best first."""
        found = dict.fromkeys(name for name, x in self.like(held) if self.is_among(held, [x]))
        return sorted(found, key=lambda name: (" " in name, name != held.name, len(name) < 4))

    def parts(self, held: Held, names: Sequence[str]) -> bool:
        """Whether a variable is none of these, and no part of one, though it has its shape."""
        fit = [x for name, x in self.like(held) if name in names]
        return bool(fit) and not any(agree(held.value, x, CLEARLY) for x in fit)


@dataclass(frozen=True)
class Parting:
    """
    The first variable that is not what it is in calls that pass, and the last before that is, with
    the line ``since`` which it is.
    """

    line: int
    name: str
    law: str
    before: str
    since: int


def few(seen: Sequence[Observation]) -> list[Observation]:
    """Those that are neither too small to tell nor too large, of finite numbers, by their size."""
    fit = [
        o
        for o in seen
        if o.recipe.poison is None
        and max(o.recipe.sizes.values()) > 2
        and np.prod(scores_shape(o.case.operation, o.inputs) or 1) <= MOST_PAIRS
    ]
    return sorted(fit, key=lambda o: o.size)


def looked_into(
    implementation: Implementation, o: Observation, budget: CallBudget
) -> Iterator[Looked]:
    """Look into one call, if it is still afforded and answered."""
    place = Path(parse_source(implementation.backend.source).place).resolve()
    if not budget.affords(1):
        return
    try:
        own = held_in(
            lambda file: Path(file).name == place.name and Path(file).resolve() == place,
            lambda: observe_answer(implementation, o, o.inputs),
        )
    except (Disagreement, Unsupported):
        return
    with np.errstate(all="ignore"):
        law = held_in(is_formula, lambda: o.case.operation.specification(**o.inputs))
    given, results = (
        [x for x in map(as_array, leaves(tree)) if x is not None] for tree in (o.inputs, o.actual)
    )
    yield Looked(own, law, given, results, ROUNDINGS * FORMATS[o.dtype].u)


def is_formula(file: str) -> bool:
    return file.startswith(LAW) and not file.endswith(ELSEWHERE)


def known_names(right: Sequence[Looked]) -> dict[tuple[int, str, int], list[str]]:
    """What each variable is in every call that passes and has it, of several in two at least."""
    found = defaultdict[tuple[int, str, int], list[list[str]]](list)
    for looked in right:
        for held in looked.own:
            found[held.key].append(looked.names_of(held))
    return {
        key: [name for name in each[0] if all(name in others for others in each)]
        for key, each in found.items()
        if len(each) >= min(2, len(right))
    }


def first_parting(known: dict[tuple[int, str, int], list[str]], looked: Looked) -> Parting | None:
    """Find where a call parts; None where nothing but its result is known."""
    last, since = "", 0
    for held in looked.own:
        names = known.get(held.key, [])
        if not names or looked.is_among(held, looked.given):
            continue
        if looked.parts(held, names):
            is_all = not last and looked.is_among(held, looked.results)
            return None if is_all else Parting(held.line, held.name, names[0], last, since)
        since, last = held.line, say.AGREES.format(line=held.line, name=held.name, law=names[0])
    return None
