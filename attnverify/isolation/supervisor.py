"""
Isolation: a user's backend is judged in a process of its own, so that what kills it costs one
verdict and nothing else.

The parent loads nothing of the backend. It starts ``attnverify.isolation.worker`` (a new
interpreter, never a fork: a device does not survive one), hands it cell after cell as plain data,
and watches: the clock, the resident memory, the output. A worker that died, hangs, eats the memory
or floods the disk is ended with all that it has started, its cell says so and on which recipe, and
the next cell gets another.

Memory is what the worker and its children hold, read twenty times a second: a limit on the address
space (RLIMIT_AS) forbids CUDA, which reserves far more than it uses, and one on data (RLIMIT_DATA)
turns into an abort inside libraries that cannot bear a failing malloc.
"""

import json
import os
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from attnverify.backends.declarations import Declarations
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import by_path
from attnverify.backends.source import parse_source
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.finding import Finding
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save_or_say
from attnverify.inputs.recipe import Recipe
from attnverify.isolation.answers import unpack
from attnverify.isolation.second_look import look_again
from attnverify.isolation.worker_process import Worker, WorkerDied
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.tally import CellResult, Options, decide_verdict


def runs_in_own_process(source: str, which: str) -> bool:
    """
    Whether a backend gets a process of its own: ``all``, ``none``, or ``paths``, those that are
    given by path. A column of ours on the machine always gets one: it was imported here without.
    """
    on_machine = bool(parse_source(source).target)
    wanted = which == "all" or (which == "paths" and by_path(source)) or on_machine
    return os.name == "posix" and wanted


def describe_backend(worker: Worker) -> Backend:
    """
    Describe the worker's backend as far as it can be told without loading it here: nothing of it
    can be called.
    """
    backend = Backend(parse_source(worker.source).name, worker.source)
    if worker.told is None:
        try:
            worker.ready()
        except WorkerDied as death:
            worker.told = {"broken": f"cannot be imported: {death.words}", "implementations": []}
    told = worker.told or {}
    for name in told.keys() - {"implementations", "features", "dtypes"}:
        setattr(backend, name, told[name])
    backend.declared = Declarations(tuple(told.get("dtypes", ())), told.get("features", {}))
    backend.implementations = [
        Implementation(backend, CATALOGUE[operation], how, not_callable_here, thorough)
        for operation, how, thorough in told["implementations"]
    ]
    return backend


def not_callable_here(**_: Any) -> Any:
    raise RuntimeError("this implementation lives in another process")


def judge_in_worker(
    worker: Worker,
    cell: Cell,
    options: Options,
    known: tuple[KnownFailure, ...] = (),
    *,
    is_second: bool = False,
) -> CellResult:
    """
    Obtain the tally of a cell, judged by the worker; a few answers are then held to the
    specification here, unless this ``is_second``.

    Where it dies in a case that a known failure covers, the cell is judged again without the cases
    of that region.
    """
    fatal: tuple[KnownFailure, ...] = ()
    plain = {
        "profile": options.profile,
        "seed": options.seed,
        "failures": str(Path(options.failures).absolute()),
        "inputs": options.inputs,
    }
    own = {"implementation": cell.implementation.name, "dtype": cell.dtype, "aspect": cell.aspect}
    while True:
        lines = {
            "known": [asdict(line) for line in known],
            "fatal": [asdict(line) for line in fatal],
        }
        try:
            answer = worker.ask({"do": "judge", "options": plain} | own | lines)
            result = CellResult.from_dict(answer["tally"])
            cell.implementation.backend.alone = answer["alone"]
        except WorkerDied as death:
            covered = known_failures_covering(known, death.case, cell.dtype)
            if not set(covered) - set(fatal):
                return decide_verdict(result_of_death(worker, cell, options, death), known)
            fatal += tuple(covered)
        else:
            if result.verdict == "failed" and (output := worker.output()):
                print(
                    f"{worker.source} printed at last:\n{output}"
                )  # which pytest shows beside the failure
            if is_second:
                return result
            return look_from_outside(worker, result, cell, options, known)


def look_from_outside(
    worker: Worker,
    result: CellResult,
    cell: Cell,
    options: Options,
    known: tuple[KnownFailure, ...],
) -> CellResult:
    """
    Hold a few more answers to the specification here, where nothing of the backend is loaded: its
    process may find the judge's answer, or exchange the judge.
    """
    judged = partial(judge_in_worker, worker, cell, options, known, is_second=True)
    try:
        return look_again(result, cell, options, partial(answer_in_worker, worker), judged)
    except WorkerDied as death:
        return decide_verdict(result_of_death(worker, cell, options, death), known)


def answer_in_worker(
    worker: Worker, own: Implementation, recipe: Recipe, dtype: str
) -> tuple[Any, set[str]]:
    """
    Obtain the answer to a recipe, and what the call made use of. Raises Disagreement, Unsupported
    or Died.
    """
    case = {"operation": own.operation.name, "implementation": own.name, "dtype": dtype}
    found = worker.ask({"do": "answer", "case": case | {"recipe": json.loads(recipe.text)}})
    raise_outcome(found)
    return unpack(found["answer"]), set(found["inside"])


def raise_outcome(answer: dict[str, Any]) -> None:
    """Raise what a call in the worker raised."""
    if "disagreement" in answer:
        raise Disagreement(answer["disagreement"])
    if "unsupported" in answer:
        raise Unsupported(answer["unsupported"])


def known_failures_covering(
    known: tuple[KnownFailure, ...], case: dict[str, Any], dtype: str
) -> list[KnownFailure]:
    """Find the known failures in whose region a case lies."""
    return [
        line
        for line in known
        if case.get("recipe")
        and "check" not in case
        and line.covers(case_of(Recipe(**case["recipe"]), dtype))
    ]


def result_of_death(worker: Worker, cell: Cell, options: Options, death: WorkerDied) -> CellResult:
    """Build the result of a cell whose worker died, with the record of the case that it died on."""
    record, notes = record_of_death(worker, cell, death.case), tuple[str, ...]()
    if record:
        notes = save_or_say(record, options.failures, None)
    finding = Finding(
        death.words,
        death.headline,
        message="\n".join(death.last_output),
        record=record,
        notes=notes,
        hung=death.hung,
    )
    return replace(cell.result(), findings=[finding])


def record_of_death(worker: Worker, cell: Cell, case: dict[str, Any]) -> FailureRecord | None:
    """Record what was being run when the worker died, where it was a case or a check."""
    if "operation" not in case:
        return None
    return FailureRecord(
        case["operation"],
        cell.dtype,
        cell.aspect,
        case.get("recipe") or {},
        case["implementation"],
        worker.source,
        case.get("check"),
    )


def replay_in_worker(
    worker: Worker, failure: FailureRecord, implementation: str, script: bool = False
) -> str | float:
    """
    Judge a recorded failure once more, in the worker (or its script). Raises Disagreement,
    Unsupported or Died.
    """
    answer = worker.ask(
        {
            "do": "see again",
            "failure": asdict(failure),
            "implementation": implementation,
            "script": script,
        }
    )
    raise_outcome(answer)
    return answer["script"] if script else answer["budget"]
