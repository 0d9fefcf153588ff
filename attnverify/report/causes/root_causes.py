"""
Triage: which of the failed cells are causes, and which only wait for them.

A cell that fails is blocked by another one that it is built on, where that fails too: gradients,
side effects and hidden NaN on the values of the same implementation, an operation on those that the
specification calls for it (softmax, attention, layer), everything on the adapter. What is left are
the root causes: the same diagnosis, or the same kind of failure in the same region of the cases, is
one cause, whatever dtypes, columns and implementations show it. They are told from the lowest rung
upwards. What a run does not require is no root cause, comes behind them and blocks nothing that is
required.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import AT_A_NUMBER, Explanation
from attnverify.diagnosis.sentences import NEARNESS
from attnverify.diagnosis.smallest_cover import smallest_cover
from attnverify.failures.finding import NOT_REFUSED, Finding, is_recorded
from attnverify.failures.named_features import feature_of
from attnverify.inputs.conditions import Condition, parse_condition
from attnverify.inputs.recipe import in_letters
from attnverify.options import ANSWER
from attnverify.report.causes.prerequisites import LAYERS, operations_used_by

Tallied = dict[str, Any]
"""A tally as plain data (:meth:`attnverify.verdicts.columns.Tally.as_dict`)."""


LEVELS = (
    "adapter",
    "layout",
    "dtype",
    "softmax",
    "masks",
    "parts",
    "attention",
    "layers",
    "refusals",
    "side effects",
)
"""From below: what comes earlier is mended first."""


@dataclass(eq=False)
class Symptom:
    """One finding of a failed cell, with the parsed conditions of the region where it shows."""

    tally: Tallied
    finding: Finding

    @property
    def operation(self) -> str:
        return str(self.tally["operation"])

    @property
    def implementation(self) -> str:
        return str(self.tally["implementation"])

    @property
    def kind(self) -> str:
        return self.finding.kind

    @property
    def region(self) -> tuple[str, ...]:
        return self.finding.condition

    @cached_property
    def conditions(self) -> list[Condition]:
        return [parse_condition(text) for text in self.region]

    @property
    def subjects(self) -> set[str]:
        """What its region speaks of."""
        return {subject for condition in self.conditions for subject in condition.subjects}

    @property
    def diagnoses(self) -> frozenset[str]:
        return self.finding.causes

    @property
    def is_nearness(self) -> bool:
        """Whether its cause is that an arithmetic that was not declared comes as near."""
        return str(self.finding.cause or "").startswith(NEARNESS)

    @property
    def is_joint(self) -> bool:
        """Whether all its mistakes together explain it, and none alone."""
        return self.finding.cause is not None and self.finding.cause.together


@dataclass
class RootCause:
    """
    A root cause: what the cells that show it have in common, and the failed cells that wait for it;
    or the same of what is not ``required``.
    """

    words: str
    backend: str
    rung: str
    cells: list[Tallied] = field(default_factory=list)
    blocked: list[Tallied] = field(default_factory=list)
    signs: list[Symptom] = field(default_factory=list)
    required: bool = True
    brief: str = ""
    """Without the region in which it was seen."""

    def as_dict(self) -> dict[str, Any]:
        named = {
            "cells": [name_of(tally) for tally in self.cells],
            "blocked": [name_of(tally) for tally in self.blocked],
        }
        about: dict[str, Any] = {"cause": self.words, "backend": self.backend, "rung": self.rung}
        about |= {"required": self.required}
        return about | named | {"representative": name_of(self.shown_by)}

    @property
    def shown_by(self) -> Tallied:
        """The cell that is told in full: the first column, in float32 where that fails."""
        return next((tally for tally in self.cells if tally["dtype"] == "float32"), self.cells[0])

    @property
    def told(self) -> list[Finding]:
        """
        The findings of that cell, first the one that is told: one that names a mistake, shows no
        other beside it, and has in its case what the mistake names.
        """
        own = [sign for sign in self.signs if sign.tally is self.shown_by]
        ranked = sorted(own, key=lambda sign: (not sign.diagnoses, sign.is_joint, self.lacks(sign)))
        return [sign.finding for sign in ranked]

    def lacks(self, sign: Symptom) -> bool:
        """Tell whether a sign lacks what the mistake names, or has a region where it names none."""
        feature, record = feature_of(self.brief), sign.finding.record
        if feature is None:
            return bool(sign.region)
        return record is None or not record.recipe or not feature(record.case)

    @property
    def is_unanswered(self) -> bool:
        """Whether a call was ended for its time, which may be slow and not wrong."""
        return self.told[0].hung > 0

    @property
    def replay(self) -> str:
        """
        The line that shows what is told of it again, or another case where that one was not
        recorded; "" where nothing of it was.
        """
        kept = (found.record for found in self.told if found.record and is_recorded(found.notes))
        return next((record.replay_line for record in kept), "")


def name_of(tally: Tallied) -> str:
    return f"{tally['implementation']} {tally['dtype']} {tally['aspect']}"


Requires = Callable[[Tallied], bool]
"""Whether a cell that failed makes the run a failure."""


def everything(tally: Tallied) -> bool:
    return True


def triage(tallies: list[Tallied], requires: Requires = everything) -> list[RootCause]:
    """
    Find the root causes of the failed cells, by backend and from the lowest rung upwards, behind
    them what is not required; each failed cell is in one of them at least.
    """
    found: list[RootCause] = []
    for backend in dict.fromkeys(tally["backend"] for tally in tallies):
        own = [tally for tally in tallies if tally["backend"] == backend]
        found += sorted(causes_of(own, requires), key=lambda cause: LEVELS.index(cause.rung))
    return sorted(found, key=lambda cause: not cause.required)


def causes_of(tallies: list[Tallied], requires: Requires) -> list[RootCause]:
    """Find the root causes of one backend, from all its tallies."""
    signs = [
        sign for tally in tallies if tally["verdict"] == "failed" for sign in symptoms_of(tally)
    ]
    signs = [say_by_more(sign, signs) for sign in signs]
    signs.sort(key=lambda sign: len(operations_used_by(sign.operation)))
    above = {
        sign: blocker
        for sign in signs
        if (
            blocker := next(
                (
                    other
                    for other in signs
                    if blocks(other, sign) and (requires(other.tally) or not requires(sign.tally))
                ),
                None,
            )
        )
    }
    groups: list[list[Symptom]] = []
    for sign in signs:
        if sign not in above:
            joined = [
                group
                for group in groups
                if requires(group[0].tally) == requires(sign.tally)
                and any(have_same_cause(other, sign) for other in group)
            ]
            groups = [group for group in groups if group not in joined] + [
                [*(s for group in joined for s in group), sign]
            ]
    named = [part for group in groups for part in split_by_mistake(group)]
    causes = [cause_of(name, signs, tallies, requires(signs[0].tally)) for name, signs in named]
    cause = {
        sign: found
        for (_, signs), found in [*zip(named, causes, strict=True)][::-1]
        for sign in signs
    }
    shown = [id(tally) for cause in causes for tally in cause.cells]
    for sign in above:
        waiting = cause[find_root(sign, above)].blocked
        if id(sign.tally) not in shown and sign.tally not in waiting:
            waiting.append(sign.tally)
    return causes


def say_by_more(sign: Symptom, signs: list[Symptom]) -> Symptom:
    """
    Say a mistake by the one that shows it too, where that is named of the same implementation: two
    names of one slip are no two mistakes.
    """
    cause, whose = sign.finding.cause, sign.implementation
    beside = (x.finding.cause for x in signs if x.implementation == whose and x.finding.cause)
    more = {one.name: one for found in beside for one in found.explanations}
    if not cause or not any(SHOWS_TOO.get(name) in more for name in cause.names):
        return sign
    own = tuple(more.get(SHOWS_TOO.get(one.name, ""), one) for one in cause.explanations)
    return Symptom(sign.tally, replace(sign.finding, cause=replace(cause, explanations=own)))


EMPTIED = "NaN in rows that a float mask empties"
SHOWS_TOO = {
    "rows that see no key averaging all values": AT_A_NUMBER,
    "NaN in rows that see no key": EMPTIED,
    "NaN in rows that see no key, which reaches hidden keys too": EMPTIED,
    f"{EMPTIED}, which reaches hidden keys too": EMPTIED,
}
"""What shows another mistake too, by the name of that one."""


def split_by_mistake(group: list[Symptom]) -> list[tuple[str, list[Symptom]]]:
    """
    Part a group by the fewest mistakes that explain all its signs: two signs may have a third in
    common and no mistake, and one may need several. What names none goes with the first.
    """
    needed = {name for sign in group if sign.is_joint for name in sign.diagnoses}
    others = [s.diagnoses for s in group if not s.is_joint and not s.diagnoses & needed]
    names = (*sorted(needed), *smallest_cover(others))
    if len(names) < 2:
        return [("", group)]
    parts: dict[str, list[Symptom]] = {}
    for sign in group:
        own = [name for name in names if name in sign.diagnoses] or [names[0]]
        for name in own if sign.is_joint else own[:1]:
            parts.setdefault(name, []).append(sign)
    return list(parts.items())


def find_root(sign: Symptom, above: dict[Symptom, Symptom]) -> Symptom:
    while sign in above:
        sign = above[sign]
    return sign


def symptoms_of(tally: Tallied) -> list[Symptom]:
    """Collect what a failed cell shows."""
    return [Symptom(tally, Finding.from_dict(plain)) for plain in tally["findings"]]


def blocks(lower: Symptom, upper: Symptom) -> bool:
    """
    Tell whether the upper cell need not be looked at before the lower one is right. Nobody knows
    whether an operation calls the one that the specification calls: only the same trouble waits.
    """
    if is_explained_check(lower, upper) or is_nearness_beside(lower, upper):
        return True
    if raises_beside(upper, lower):
        return False
    if not is_prerequisite(lower.tally, upper.tally) or are_unrelated(lower, upper):
        return False
    is_own = lower.operation == upper.operation or lower.tally["blocked"]
    return is_own or lower.kind == upper.kind or bool(lower.diagnoses & upper.diagnoses)


def is_explained_check(lower: Symptom, upper: Symptom) -> bool:
    """
    Tell whether the upper sign is that of a check of the values, a long sequence or a factor, whose
    own numbers are not diagnosed, where those of a case are.
    """
    is_check = upper.finding.record is not None and upper.finding.record.check is not None
    alike = ("backend", "implementation", "aspect")
    return (
        is_check
        and not upper.diagnoses
        and bool(lower.diagnoses)
        and upper.tally["aspect"] in ANSWER
        and all(lower.tally[name] == upper.tally[name] for name in alike)
    )


def is_nearness_beside(lower: Symptom, upper: Symptom) -> bool:
    """
    Tell whether all that the upper sign says is that an arithmetic comes near, where another sign
    of the same implementation has a mistake.
    """
    same = ("backend", "implementation", "dtype")
    return (
        upper.is_nearness
        and bool(lower.diagnoses)
        and not lower.is_nearness
        and all(lower.tally[name] == upper.tally[name] for name in same)
    )


def is_prerequisite(lower: Tallied, upper: Tallied) -> bool:
    """
    Tell whether the specification builds what the upper cell judges on what the lower one does, in
    one dtype and by one implementation's means.
    """
    one, other = lower["aspect"], upper["aspect"]
    if (
        lower["blocked"]
        or upper["blocked"]
        or lower["dtype"] not in (upper["dtype"], "bool")
        or lower["how"] not in (upper["how"], "")
    ):
        return False
    if lower["operation"] == upper["operation"]:
        return bool(lower["how"] == upper["how"] and other in DEPENDENT_ASPECTS.get(one, ()))
    return lower["operation"] in operations_used_by(upper["operation"]) and (
        one == other != "refusals" or other in DEPENDENT_ASPECTS.get(one, ())
    )


DEPENDENT_ASPECTS = {
    "values": ("gradients", "side effects", "hidden NaN", "isolation"),
    "gradients": ("side effects", "hidden NaN", "isolation"),
    "hidden NaN": ("isolation",),
}


def are_unrelated(one: Symptom, other: Symptom) -> bool:
    """Two regions that have nothing in common, or two diagnoses of which none is the same."""
    if one.diagnoses and other.diagnoses:
        return not one.diagnoses & other.diagnoses
    return bool(one.region and other.region and not one.subjects & other.subjects)


def have_same_cause(one: Symptom, other: Symptom) -> bool:
    """Tell whether two signs are of one cause."""
    if one.diagnoses & other.diagnoses:
        return True
    if one.kind == other.kind and (
        one.region == other.region != () or one.kind in (NOT_REFUSED, one.tally["blocked"])
    ):
        return True
    if one.kind == other.kind and one.kind.startswith("raised") and not are_unrelated(one, other):
        return True
    if raises_beside(one, other) or raises_beside(other, one):
        return False
    same = one.implementation == other.implementation
    if same and {*one.finding.at} & {*other.finding.at}:
        return True
    return same and (
        one.region == other.region != ()
        or (one.kind == other.kind and not are_unrelated(one, other))
    )


def raises_beside(one: Symptom, other: Symptom) -> bool:
    """Tell whether a sign is an exception, which no wrong number of the other explains."""
    raises = one.kind.startswith("raised") and not one.diagnoses
    return raises and not other.kind.startswith("raised")


def cause_of(name: str, signs: list[Symptom], tallies: list[Tallied], required: bool) -> RootCause:
    """
    Name what the signs of a group have in common: the mistake of this name or that most of them
    name, else the first one's kind; and the region of the first that names it.
    """
    first, mistake = signs[0], named_most(signs, name)
    cells = list({id(sign.tally): sign.tally for sign in signs}.values())
    region = next(
        (s.region for s in signs if mistake and mistake.name in s.diagnoses), first.region
    )
    where = f"when {' and '.join(region)}" if region else ""
    seen = f" (seen {where})" if mistake else f" {where}"  # a mistake is a sentence of its own
    return RootCause(
        f"{mistake.words if mistake else first.kind}{seen if where else ''}",
        first.tally["backend"],
        level_of(first, cells, tallies),
        cells,
        signs=signs,
        required=required,
        brief=mistake.words if mistake else brief_of(first.finding),
    )


def brief_of(finding: Finding) -> str:
    """
    Write ``line 3: right with `a` instead of `b```, or what was seen where nothing mends it, and
    when.
    """
    if finding.mend:
        return finding.mend.brief
    told = shortened(finding)
    further = [condition for condition in finding.condition if condition not in told]
    return f"{told}, only when {' and '.join(further)}" if further else told


def shortened(finding: Finding) -> str:
    """
    Leave of what was seen the first thing, without the case in which it was; else the kind, and the
    sizes of a call that had no answer.
    """
    cause = str(finding.cause or "")
    if finding.hung and (sizes := sizes_of(finding)):
        return f"{finding.kind} ({sizes})"
    told, _, more = cause.removeprefix(WRONG).partition(" (seen")[0].partition("; ")
    if told == say.OUTPUT:  # where there is one output its name says nothing
        return ": ".join(more.split(": ")[:2]) or finding.symptom
    return told or finding.kind


def sizes_of(finding: Finding) -> str:
    """Write ``B=1 N=2``: of the case that is replayed."""
    return in_letters((finding.record.recipe if finding.record else {}).get("sizes", {}))


WRONG = say.WRONG.format(outputs="")
"""Before the place of what is wrong, where nothing is known but that."""


def named_most(signs: list[Symptom], name: str = "") -> Explanation | None:
    """Find the mistake of this name, or that most diagnoses name, as the first that does has it."""
    named = [
        explanation
        for sign in signs
        if sign.finding.cause
        for explanation in sorted(sign.finding.cause.explanations, key=attrgetter("name"))
        if name in ("", explanation.name)
    ]
    names = [explanation.name for explanation in named]
    return max(named, key=lambda explanation: names.count(explanation.name), default=None)


def level_of(sign: Symptom, cells: list[Tallied], tallies: list[Tallied]) -> str:
    """
    Tell how far down a cause lies: by its region, by the dtypes that show it, by the operation.
    """
    topics = {condition.topic for condition in sign.conditions if not condition.excludes}
    operation = sign.operation
    same = [
        tally
        for tally in tallies
        if tally["implementation"] == sign.tally["implementation"]
        and tally["aspect"] == sign.tally["aspect"]
    ]
    if sign.tally["blocked"]:
        return "adapter"
    if sign.tally["aspect"] in ("refusals", "side effects"):
        return str(sign.tally["aspect"])
    if "layout" in topics:
        return "layout"
    if any(tally["verdict"] == "passed" for tally in same):
        return "dtype"
    if operation == "softmax":
        return "softmax"
    if operation in ("causal_mask", "merge_masks") or "mask" in topics:
        return "masks"
    return "layers" if operation in LAYERS else "attention" if "attention" in operation else "parts"
