"""
A user's own kernel in a race: judged first, then timed beside the peers that are installed, in the
way of every other benchmark; where it runs, and on how many cores.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path

from attnverify.backends.calls.terms import concerning, may_be_causal, translate_given
from attnverify.backends.declarations import TAKES_NO
from attnverify.backends.implementation import Backend, Implementation
from attnverify.bench.measure.cases import COMPILED, Case, cases
from attnverify.bench.measure.contestants import Contestant, contestants
from attnverify.bench.measure.inputs import draw_inputs
from attnverify.bench.measure.race import Entry, Race, enter, on_step, record, run
from attnverify.bench.measure.shares import Question, ask
from attnverify.bench.measure.validation import Judgement
from attnverify.bench.report.results import (
    Record,
    device_name,
    new_results_file,
    write_records,
)
from attnverify.isolation.second_look import made_use_of
from attnverify.judge import state_guard
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.fitting import made_causal
from attnverify.verdicts.tally import Options

__all__ = ["device", "two_threads"]


def device() -> str:
    """Tell where this run measures: cuda where PyTorch finds a GPU, else cpu."""
    return "cuda" if find_spec("torch") and import_module("torch").cuda.is_available() else "cpu"


@contextmanager
def two_threads(measured: bool) -> Iterator[None]:
    """
    PyTorch on at most two cores whatever the environment says; nothing is compiled where nothing is
    measured.
    """
    if not find_spec("torch"):
        yield
        return
    torch = import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    try:
        with torch.compiler.set_stance("default" if measured else "force_eager"):
            yield
    finally:
        torch.set_num_threads(before)


QUICK = Options(profile="quick")
INTERPRETED = "the PTX machine executes it here, and its seconds say nothing of a GPU's"


def race_backend(
    found: Backend, names: tuple[str, ...], sizes: dict[str, int], wrong: bool, seconds: float
) -> Iterator[list[Record]]:
    """
    Race every implementation of a backend that has a case, one race for each operation: records of
    all contestants, the backend's own first. A wrong one is timed only where `wrong` says so. What
    somebody's own specification says is timed beside that specification, called as it stands.
    """
    for implementation in found.implementations:
        operation = implementation.operation
        if operation.is_gradient or (names and operation.name not in names):
            continue
        on_step.get()(f"asking what is right of {operation.name}")
        case = choose_case(implementation, sizes, seconds)
        if case is None:
            yield [not_raced(implementation, "no case of a size of the field is known for it")]
            continue
        with two_threads(seconds > 0):
            around = state_guard.snapshot(vital=True)
            raced = race_one(implementation, case, wrong, measured=seconds > 0)
            if changes := "; ".join(map(str, state_guard.diff_and_restore(around))):
                raced.entries[0].refused = changes
        own, *others = [record(raced, entry) for entry in raced.entries]
        if own["seconds"]:
            own["inside"] = sorted(made_use_of(implementation, case.dtype, QUICK))
        yield [own, *others]


def choose_case(
    implementation: Implementation, sizes: dict[str, int], seconds: float
) -> Case | None:
    """
    Choose the first case of the operation that this device measures, with the sizes that are asked.
    """
    operation, on = implementation.operation, device()
    told = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
    if operation.outside is not None:
        largest = max(operation.outside.fixed(), key=lambda each: prod(each["sizes"].values()))
        check_letters(sizes, largest["sizes"], operation.name)
        fitted = operation.outside.fitted(largest["sizes"] | sizes)
        name = f"own sizes, {told}" if told else "sizes of the specification's cases"
        options = largest["options"]
        return Case(name, operation.name, fitted, device=on, options=options, seconds=seconds)
    known = (case for case in cases(operation.chapter, on) if case.operation == operation.name)
    first = next((case for case in known if case.mode == "forward"), None)
    if first is None:
        return None
    check_letters(sizes, first.sizes, operation.name)
    causal = implementation.backend.declared.terms.get("CAUSAL")
    is_causal = causal is not None and may_be_causal(operation)
    told += ", causal" * is_causal
    chosen = replace(
        first,
        name=f"own sizes, {told}" if sizes else first.name + told,
        sizes=with_sizes(first.sizes, sizes),
        seconds=seconds,
        without=(*COMPILED, "torch_impl:eager"),
        **(made_causal(first.options, operation, causal) if is_causal else {}),
    )
    return without_untaken(implementation, chosen)


def without_untaken(implementation: Implementation, case: Case) -> Case:
    """Leave out the options of a case that a function has no argument for, and name them."""
    operation, declared = implementation.operation, implementation.backend.declared
    said = concerning(declared.terms, operation)
    given = translate_given(said, operation, dict(draw_inputs(case, 1, device())))
    own_arguments = getattr(implementation.function, "own_arguments", dict)
    while True:
        try:
            own_arguments(**given)
            return case
        except NotImplementedError as error:
            option = str(error).removeprefix(TAKES_NO)
        if option not in case.options:
            return case
        options = {name: value for name, value in case.options.items() if name != option}
        case = replace(case, name=f"{case.name}, without {option}", options=options)
        given = {name: value for name, value in given.items() if name != option}


def check_letters(asked: dict[str, int], known: dict[str, int], name: str) -> None:
    """Raise ValueError for a size that an operation has not: it would change nothing."""
    for letter in asked:
        if letter not in known:
            wanted = ", ".join(sorted(known))
            raise ValueError(f"--sizes: wanted letters of {name} ({wanted}), got {letter}")


def with_sizes(known: dict[str, int], asked: dict[str, int]) -> dict[str, int]:
    """
    Return the sizes of a case with those that are asked; what was as large as one of them goes with
    it.
    """
    follow = {
        letter: asked[leader]
        for letter, leader in (("M", "N"), ("E", "D"), ("P", "N"))
        if leader in asked and known.get(letter) == known.get(leader)
    }
    return known | {letter: size for letter, size in follow.items() if letter in known} | asked


def race_one(implementation: Implementation, case: Case, wrong: bool, measured: bool) -> Race:
    """One race: the user's kernel, then everyone who has the operation."""
    source = Path(implementation.backend.source)
    place = str(source.resolve()) if source.exists() else str(source)
    own = Contestant(label_of(implementation), place, implementation.how)
    question = ask(case, device())
    entry = enter_own(implementation, question, own, wrong)
    if entry.runs:
        on_step.get()(f"loading who else has {case.operation}")
    written = getattr(implementation.operation, "source", "")
    specification = [Contestant("the specification", written)] * bool(written)
    # nobody to be compared with: none is timed
    peers = [*contestants(case), *specification] if entry.runs else []
    others = (enter(question, contestant) for contestant in peers)
    return run(question, device(), (entry, *others), measured)


def label_of(implementation: Implementation) -> str:
    how = f":{implementation.how}" if implementation.how else ""
    return f"{implementation.backend.name}{how}"


def enter_own(
    implementation: Implementation, question: Question, own: Contestant, wrong: bool
) -> Entry:
    """
    Return the user's kernel as an entry: held to the cases of the quick profile first, since the
    one case that is timed shows little.
    """
    if "machine" in implementation.backend.device:
        return Entry(own, None, Judgement("not timed", INTERPRETED))
    on_step.get()(f"judging {own.label}, {question.case.operation}, by the quick profile")
    words = first_wrong(implementation, question.case.dtype)
    if words and not wrong:
        return Entry(own, implementation, Judgement("wrong, not timed", words))
    entry = enter(question, own)
    if words and entry.runs:
        entry.judgement = Judgement("wrong", words, entry.judgement.budget)
    return entry


def first_wrong(implementation: Implementation, dtype: str) -> str:
    """
    What a quick run finds first wrong with its values, its cause in the first line; "" where they
    are right. The failure is recorded, as every run does.
    """
    judged = judge_cell(Cell(implementation, None, dtype, "values"), QUICK)
    told = (f"{found.cause or found.symptom}\n{found}" for found in judged.findings)
    return next(told, "")


def not_raced(implementation: Implementation, reason: str) -> Record:
    """Return the record of what has no race."""
    return {
        "case": "none",
        "operation": implementation.operation.name,
        "dtype": "float32",
        "mode": "forward",
        "device": device(),
        "sizes": {},
        "label": label_of(implementation),
        "ours": False,
        "verdict": "not timed",
        "reason": reason,
        "refused": "",
        "peak_extra_bytes": None,
        "seconds": {},
        "ratios": {},
    }


def keep_records(records: list[Record], folder: Path) -> Path:
    """Keep records where ``attnverify bench-report --results`` finds them."""
    path = new_results_file(folder, device_name(device()))
    write_records(path, records)
    return path
