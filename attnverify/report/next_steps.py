"""
How a run ends: what to do next, in one line each - after a failure, a backend that is not there, or
a run in which nothing was judged -, and what it found of each backend.
"""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnverify.backends.declarations import (
    FLOAT_MASK,
    NO_FLOAT_MASK,
    NO_GRADIENT,
    TAKES_AXES,
    TAKES_NO,
    Declarations,
)
from attnverify.backends.functions import (
    AS_MUCH_AS,
    GUESSED,
    HAS_OTHERS,
    TAKEN_FOR_LAYER,
    refused_of,
)
from attnverify.backends.modules import NOT_COMPILED
from attnverify.backends.source import parse_source
from attnverify.catalogue.traits import DTYPES
from attnverify.diagnosis.declaring import together
from attnverify.judge.comparison import format_budget
from attnverify.judge.errors import DOES_NOT_COMPILE
from attnverify.options import ANSWER, FAILURES
from attnverify.precision import find_fields
from attnverify.report.causes.root_causes import triage
from attnverify.report.table import in_full, number_of
from attnverify.report.terminal_colours import has_copied
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.found_out import ABOUT_DTYPES, COMPUTES_IN
from attnverify.verdicts.tally import JUDGED, is_unexpected_pass, most_common, rung_of

if TYPE_CHECKING:
    from attnverify.session import Verification


def see_again(
    run: "Verification", tallies: list[dict[str, Any]], page: str | None
) -> Iterator[str]:
    """
    Write the line that shows a failure again, that of the lowest root cause that was recorded, and
    the one that draws them all; ``page`` is where the report went.
    """
    causes = [cause for cause in triage(tallies, run.is_red) if cause.required]
    replays = {number: cause.replay for number, cause in enumerate(causes, 1)}
    recorded = next((number for number, replay in replays.items() if replay), 0)
    if recorded:
        which = "the first root cause" if recorded == 1 else f"root cause {recorded}"
        kept = failures_option(run.options.failures)
        yield f"next, to see {which} again: {replays[recorded]}{kept}"
    if page:
        yield f"report: {page}"
    elif recorded:
        yield "next, for a page with pictures of the failures: the same line with --report out.html"


def next_steps(
    run: "Verification", tallies: list[dict[str, Any]], is_cut: bool = False
) -> Iterator[str]:
    """Write what helps where nothing could be judged; a run that was cut says so itself."""
    for backend in run.backends:
        yield from for_backend(backend, run.operations)
    unusable = any(backend.broken or backend.missing for backend in run.backends)
    if not (tallies or is_cut or unusable):
        if run.operations:
            yield from name_what_is_there(run)
        yield "next, for the names of the operations, by which functions are found: attnverify list"
        yield "next, to judge it by ten lines of NumPy of your own: attnverify new --spec"


@dataclass(frozen=True)
class Cut:
    """
    What a run has not judged that was asked for: it was cut, or interrupted.

    left   the cells without a verdict
    found  what was found in the one under way (attnverify/verdicts/one_case.py); {} for nothing
    """

    left: list[Cell] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Say what was found: ``3 of 20 cases fail (values of f in float16; first: NaN)``."""
        record, kind, share = (self.found[name] for name in ("record", "kind", "share"))
        where = f"{record['aspect']} of {record['implementation']} in {record['dtype']}"
        return f"{share} fail ({where}; first: {kind})" if share else f"{kind} ({where})"

    def of(self, backend: Any) -> "Cut":
        """Choose what is about one backend."""
        is_own = self.found and self.found["record"]["backend"] == backend.source
        own = [x for x in self.left if x.implementation.backend.name == backend.name]
        return Cut(own, self.found if is_own else {})

    def required(self, run: "Verification") -> list[Cell]:
        """List the cells without which there is no verdict."""
        return [x for x in self.left if x.aspect in run.required(x.implementation.backend.name)]

    def as_dict(self) -> dict[str, Any]:
        """As a report has it: nothing of a run that came to its end."""
        found = {"found_so_far": self.words} if self.found else {}
        return ({"left_out": [x.title for x in self.left]} if self.left else {}) | found


WHOLE = Cut()
"""Of a run that came to its end."""


def describe_outcomes(
    run: "Verification", tallies: list[dict[str, Any]], cut: Cut = WHOLE, short: bool = False
) -> Iterator[str]:
    """
    Say in one line what was found of each backend, and what of it was not judged; unless it is to
    be ``short``, in another what it need not hold and does not.
    """
    for backend in run.backends:
        own = [tally for tally in tallies if tally["backend"] == backend.name]
        if backend.broken or backend.missing:
            state = "broken" if backend.broken else "missing"
            why = str(backend.broken or backend.missing)
            told = f"{state}: {why}" if has_copied(why) else f"{state} ({why})"
            yield f"{backend.source}: {told}"
        else:
            own_cut = cut.of(backend)
            refused = refused_of(backend, getattr(run, "operations", ()))
            left = [words.partition(" ")[0] for words in refused]
            left += [] if wrong_cells(run, own) else never_given(backend, own)
            left = [*name_left(run, own_cut, own), *[", ".join(left)] * bool(left)]
            more = f"; not judged: {'; '.join(left)}" if left else ""
            found = describe_outcome(run, backend.name, own, own_cut)
            yield f"{name_guessed(backend)}: {found}{more}"
        need_not = [one for one in own if one["verdict"] == "failed" and not run.is_red(one)]
        if need_not and not short:
            aspects = dict.fromkeys(one["aspect"] for one in need_not)
            asked = f"--require {rung_of(aspects)} asks for it"
            yield f"  not required, and not met: {', '.join(map(in_full, aspects))} ({asked})"


def name_left(run: "Verification", cut: Cut, tallies: list[dict[str, Any]]) -> list[str]:
    """
    Write ``gradients in float32`` and ``values and gradients in float16, bfloat16`` of what must
    hold and was not judged; of several functions how many cells.
    """
    left = cut.required(run)
    if len({cell.implementation.name for cell in left}) > 1:
        aspects = run.required(left[0].implementation.backend.name)
        judged = sum(tally["aspect"] in aspects for tally in tallies)
        return [f"{len(left)} of {judged + len(left)} cells"]
    found = dict[str, list[str]]()
    for cell in left:
        found.setdefault(cell.dtype, []).append(cell.aspect)
    alike = dict[str, list[dict[str, Any]]]()
    for dtype, kinds in found.items():
        alike.setdefault(" and ".join(kinds), []).append({"dtype": dtype})
    return [f"{what} in {name_dtypes(cells)}" for what, cells in alike.items()]


def never_given(backend: Any, tallies: list[dict[str, Any]]) -> list[str]:
    """Name the arguments of the functions judged that no call was given, a few of many."""
    judged = {tally["operation"] for tally in tallies if tally["verdict"] in JUDGED}
    unjudged = getattr(backend, "unjudged", {}).items()
    names = [*dict.fromkeys(x for own, left in unjudged if own in judged for x in left)]
    more = [f"{len(names) - MANY} more"] if len(names) > MANY else []
    return [*names[:MANY], *more]


MANY = 4
"""So many arguments at most are named in the last line."""


def name_guessed(backend: Any) -> str:
    """Name a backend, and the operation that its one function was taken for."""
    taken = any(GUESSED in note for note in getattr(backend, "notes", ()))
    names = [one.operation.name for one in backend.implementations[:1] if taken]
    return " as ".join((backend.source, *names))


def describe_outcome(
    run: "Verification", backend: str, tallies: list[dict[str, Any]], cut: Cut = WHOLE
) -> str:
    """
    Say whether a backend is right, wrong, not judged, or without evidence; of a run that was cut
    that this is no verdict yet.
    """
    red = [tally for tally in tallies if run.is_red(tally)]
    if wrong := wrong_cells(run, tallies):
        causes = [one for one in triage(tallies, run.is_red) if one.required]
        where = name_dtypes(wrong)
        if "," in where and where == name_dtypes(tallies) and not cut.required(run):
            where = "every dtype"
        told = listed_by_number([one.brief for one in causes])
        if all(one.is_unanswered for one in causes):
            return f"no verdict in {where}: {told}; it is slow, or stuck"
        only = "gradients of " * all(cell["aspect"] == "gradients" for cell in wrong)
        return f"wrong in {only}{where}: {told}"
    if any(map(is_unexpected_pass, red)):
        return "a known failure passes: its line must go"
    if red:
        return f"not shown to be right: a trivial answer would pass all cases in {name_dtypes(red)}"
    required = [t for t in tallies if t["aspect"] in run.required(backend)]
    held = [t for t in required if t["verdict"] in JUDGED]
    if cut.required(run):
        found = f"{cut.words}, not explained yet" if cut.found else ""
        right = describe_right(required, held, "right so far") if held else ""
        return f"not finished: {'; '.join(filter(None, (found, right))) or 'no verdict yet'}"
    if not held:
        reasons = {tally["reason"]: 1 for tally in required if tally["reason"]}
        return f"not judged{f': {most_common(reasons)}' if reasons else ''}"
    return describe_right(required, held)


def listed_by_number(briefs: list[str]) -> str:
    """
    Write ``1. a slip; 2. another; and 3 more``, numbered as above and each told once; one alone has
    no number.
    """
    numbers = {brief: number for number, brief in reversed([*enumerate(briefs, 1)])}
    if len(numbers) == 1:
        return briefs[0]
    named = sorted(numbers, key=lambda brief: numbers[brief])
    told = [f"{numbers[brief]}. {brief}" for brief in named[:NAMED]]
    more = [f"and {len(named) - NAMED} more"] if len(named) > NAMED else []
    return "; ".join([*told, *more])


NAMED = 3
"""So many mistakes at most are named in the last line."""


def wrong_cells(run: "Verification", tallies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the cells that failed and must not."""
    return [tally for tally in tallies if run.is_red(tally) and is_failed(tally)]


def is_failed(tally: dict[str, Any]) -> bool:
    """Tell whether a cell failed, and not because a known failure passes."""
    return tally["verdict"] == "failed" and not is_unexpected_pass(tally)


def describe_right(
    required: list[dict[str, Any]], held: list[dict[str, Any]], how: str = "right"
) -> str:
    """Say in which dtypes a backend is right, on how much evidence, and what was not judged."""
    known = sum(tally["verdict"] == "known failure" for tally in held)
    answers = [tally for tally in held if tally["aspect"] in ANSWER]
    aspects = {tally["aspect"] for tally in answers}
    what = "answer" if len(aspects) > 1 else next(iter(aspects), "contract")
    evidence = number_of(sum(tally["cases"] for tally in answers), "case")
    kept = (t["budget"] for t in answers if t["verdict"] != "known failure")
    budget = max(kept, default=0.0)
    most = f", at most {format_budget(budget)} of the bound" if budget else ""
    dtypes = {tally["dtype"] for tally in held}
    left = [tally for tally in required if tally["dtype"] not in dtypes]
    inside = sorted({words for tally in answers for words in tally.get("inside", ())})
    refuses = any(
        why.startswith(NO_FLOAT_MASK) for tally in answers for why in tally.get("reasons", ())
    )
    return (
        f"{how} in {name_dtypes(held)} ({what}: {evidence}{most})"
        + (f", but for {number_of(known, 'cell')} known to fail" if known else "")
        + (f"; {name_dtypes(left)} not judged" if left else "")
        + (f"; it {', '.join(inside)}" if inside else "")
        + (f"; {TAKES_NO}{FLOAT_MASK}" if refuses else "")
        + "".join(f"; {words}" for words in takes_axes(answers))
    )


def takes_axes(tallies: list[dict[str, Any]]) -> list[str]:
    """Say how many axes arrays must have: ``rel_shift takes arrays of 4 axes alone``."""
    found = {
        tally["implementation"]: why.partition(":")[0]
        for tally in tallies
        for why in [*tally.get("reasons", ()), tally["reason"]]
        if why.startswith(TAKES_AXES)
    }
    return [f"{name} {told}" for name, told in found.items()]


def name_dtypes(tallies: list[dict[str, Any]]) -> str:
    """Name the dtypes of cells, the widest first."""
    found = {tally["dtype"] for tally in tallies}
    return ", ".join(dtype for dtype in (*DTYPES, "bool") if dtype in found)


def name_what_is_there(run: "Verification") -> Iterator[str]:
    """Say of each backend what it has, where nothing of it was asked for."""
    for backend in run.backends:
        there = [one.operation for one in backend.implementations]
        found = dict.fromkeys(one.name for one in there if not one.is_gradient)
        asked = " --op ".join(run.operations)
        yield f"{backend.source} has {', '.join(found)}, and nothing of --op {asked}"


SHOWN = {
    "maximum": "differentiates the maximum of its softmax",
    "step": "stores each step of its softmax",
    "weights": "takes weights as exp(score - lse)",
}
"""What calls have shown, by the field of PRECISION that says so."""


def describe_shown(backends: Iterable[Any], tallies: list[dict[str, Any]]) -> Iterator[str]:
    """
    Say of each backend by which arithmetic it was judged that its file does not declare, and the
    one line that declares it, beside what is declared.
    """
    for backend in backends:
        own = [tally for tally in tallies if tally["backend"] == backend.name]
        words = {SHOWN[name]: None for tally in own for name in tally["shown"]}
        if words:
            names = dict.fromkeys(tally["implementation"] for tally in own)
            said = {name: shown_of(backend, name, own) for name in names}
            line: Any = said if len(said) > 1 else next(iter(said.values()))
            told = f"{' and '.join(words)}, as PyTorch's steps show, and is judged so"
            yield f"{backend.source} {told}; to say so, add"
            yield f"  PRECISION = {json.dumps(line)}"


def describe_declared(tallies: list[dict[str, Any]]) -> Iterator[str]:
    """Say of each backend the one line that declares what several findings would each declare."""
    found = defaultdict[str, dict[str, None]](dict)
    for tally in tallies:
        causes = (finding["cause"] for finding in tally["findings"] if finding["cause"])
        named = (each for cause in causes for each in cause["explanations"])
        found[tally["backend"]] |= {x["declares"]: None for x in named if x.get("declares")}
    for backend, lines in found.items():
        if len(lines) > 1:
            yield f"{backend}: to declare all that these findings would, in one line"
            yield f"  PRECISION = {together(lines)}"


def shown_of(backend: Any, name: str, tallies: list[dict[str, Any]]) -> dict[str, Any]:
    """Collect by dtype what a file declares of an implementation, and what its calls have shown."""
    found = dict[str, Any]()
    for tally in tallies:
        if tally["implementation"] == name:
            dtype, names = tally["dtype"], (tally["operation"], name)
            before = find_fields(backend.precision, *names, dtype)
            found[dtype] = found.get(dtype, before) | tally["shown"]
    return {dtype: fields for dtype, fields in found.items() if fields}


def lines_to_add(
    tallies: list[dict[str, Any]],
    declared: Mapping[str, Declarations],
    backends: Iterable[Any] = (),
) -> Iterator[str]:
    """
    List what was found out of a backend that it may declare beside what it declares, each with
    the line.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    seen: dict[tuple[str, str], str] = {}
    for tally in tallies:
        name = declaration(tally["reason"])
        if tally["verdict"] == "unsupported" and name:
            reason, witness = split_witness(tally["reason"])
            reasons = found.setdefault((tally["backend"], name), {})
            reasons.setdefault(reason, []).append(tally["dtype"])
            seen.setdefault((tally["backend"], reason), witness)
    for (backend, name), reasons in found.items():
        told = [f"{reason} ({', '.join(dict.fromkeys(d))})" for reason, d in reasons.items()]
        without = {dtype for dtypes in reasons.values() for dtype in dtypes}
        yield f"{backend} {'; '.join(told)}; if meant so, add"
        yield f"  {line_of(name, without, declared.get(backend, Declarations()))}"
        witnesses = (seen[backend, reason] for reason in reasons)
        yield from (f"  seen: {witness}" for witness in witnesses if witness)
    yield from describe_refused_masks(tallies, declared)
    yield from describe_shown(backends, tallies)
    yield from describe_declared(tallies)
    yield from describe_uncompiled(tallies)


def describe_refused_masks(
    tallies: list[dict[str, Any]], declared: Mapping[str, Declarations]
) -> Iterator[str]:
    """Say of each backend that it takes no float mask, by the error that it raises, with a line."""
    found = {
        tally["backend"]: why
        for tally in reversed(tallies)
        for why in [*tally.get("reasons", ()), *tally.get("unseen", {}).values()]
        if why.startswith(NO_FLOAT_MASK)
    }
    for backend, why in found.items():
        yield f"{backend} {why}; nothing with one was judged; if meant so, add"
        yield f"  {declared.get(backend, Declarations()).line_without(FLOAT_MASK)}"


def split_witness(reason: str) -> tuple[str, str]:
    """Split what a function computes in from the element that shows it."""
    if not reason.startswith(COMPUTES_IN):
        return reason, ""
    head, _, witness = reason.partition(": ")
    return head, witness


def declaration(reason: str) -> str:
    """Name what a file declares by which the reason says; "" where nothing does."""
    if reason == NO_GRADIENT:
        return "FEATURES"
    return "DTYPES" if reason.startswith(ABOUT_DTYPES) else ""


def line_of(name: str, without: set[str], declared: Declarations) -> str:
    """Write a declaration; of the dtypes those that are left."""
    if name == "FEATURES":
        return declared.line_without("gradient")
    return f"{name} = {tuple(x for x in DTYPES if x not in without)}".replace("'", '"')


def describe_uncompiled(tallies: list[dict[str, Any]]) -> Iterator[str]:
    """Say of each backend how many calls its kernels were not compiled for, and why."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for tally in tallies:
        for reason, count in tally["reasons"].items():
            if reason.startswith(DOES_NOT_COMPILE):
                found[tally["backend"]][reason] += count
    for backend, reasons in found.items():
        why, _ = reasons.most_common(1)[0]
        yield f"{backend} {why}: {reasons.total()} calls were left out"


def see_its_import(backend: Any) -> Iterator[str]:
    """Say how to import a file as it wants to be: alone, or as a part of its package."""
    path = Path(parse_source(backend.source).place).absolute()
    if "relative import" not in backend.broken or not (path.parent / "__init__.py").exists():
        yield f"next, to see where its import fails: python {shlex.quote(backend.source)}"
        return
    root = next(folder for folder in path.parents if not (folder / "__init__.py").exists())
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    go = "" if root == Path.cwd() else f"cd {shlex.quote(str(root))} && "
    yield f"next, it is a part of a package, judge it as one: {go}attnverify run {name}"


def fails_in_python(backend: Any) -> bool:
    """Tell whether Python shows why a file cannot be imported: CuPy compiles a kernel later."""
    return backend.source.endswith(".py") and NOT_COMPILED not in backend.broken


def failures_option(failures: str) -> str:
    return "" if failures == FAILURES else f" --failures {shlex.quote(failures)}"


def for_backend(backend: Any, operations: tuple[str, ...] = ()) -> Iterator[str]:
    """Say what its author can do about a backend that could not be judged."""
    if backend.missing and backend.missing_package:
        yield (
            f"next, for {backend.source}: install the package {backend.missing_package}; what "
            "attnverify itself can use, and how to get it: attnverify doctor"
        )
    elif (backend.broken or "").startswith("cannot be imported") and fails_in_python(backend):
        yield from see_its_import(backend)
    elif (backend.broken or "").startswith(TAKEN_FOR_LAYER):
        name = backend.broken.partition(AS_MUCH_AS)[2].partition(",")[0]
        place = backend.source + f":{name}" * (not parse_source(backend.source).function)
        yield f"next, if it is another operation: attnverify run {shlex.quote(place)}=OPERATION"
    elif (backend.broken or "").startswith("names no operation"):
        asked = operations[0] if len(operations) == 1 else "OPERATION"
        yield from name_the_operation(backend, asked)
        yield "next, for the names of the operations, by which functions are found: attnverify list"
        yield "next, to judge it by ten lines of NumPy of your own: attnverify new --spec"


def name_the_operation(backend: Any, operation: str) -> Iterator[str]:
    """Say how to tell which operation a function is that has a name of its own."""
    place = shlex.quote(backend.source)
    if parse_source(backend.source).function:
        yield f"next, say which operation it is: attnverify run {place}={operation}"
    elif HAS_OTHERS in backend.broken:
        names = backend.broken.partition(HAS_OTHERS)[2].split(", ")
        which, name = ("it", names[0].strip()) if len(names) == 1 else ("one of them", "FUNCTION")
        yield f"next, say which operation {which} is: attnverify run {place}:{name}={operation}"
