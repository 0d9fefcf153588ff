"""
A verification session: what one run judges, with which options, and what could not be judged.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnverify.backends.functions import refused_of
from attnverify.backends.implementation import Backend
from attnverify.backends.loader import KERNELS
from attnverify.backends.source import parse_source
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import ASPECTS
from attnverify.device_assignment import chosen_machine, devices
from attnverify.failures.known_failures import (
    KnownFailure,
    known_failures_file,
    read_known_failures,
)
from attnverify.inputs.expand import hides_numbers
from attnverify.inputs.given import dtype_of_file, read_arrays, speaks_of_gradients
from attnverify.isolation.second_look import judge_here as run_here
from attnverify.isolation.supervisor import describe_backend
from attnverify.isolation.supervisor import judge_in_worker as judge_there
from attnverify.isolation.worker_process import Worker
from attnverify.judge.case import refuse_given
from attnverify.options import REQUIRED
from attnverify.verdicts.cell import Cell, cells
from attnverify.verdicts.found_out import loaded
from attnverify.verdicts.tally import CellResult, Options, is_unexpected_pass


@dataclass
class Verification:
    """What the options of one pytest run ask for."""

    backends: list[Backend]
    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    options: Options
    known_failures: list[KnownFailure]
    workers: dict[str, Worker] = field(default_factory=dict)
    """The processes of the backends that are judged in one of their own, by source."""
    find_kept: Callable[[str], dict[str, Any] | None] = lambda cell: None
    """What an earlier run has found of a cell, where this one goes on with it."""
    keep: Callable[[str, dict[str, Any]], None] = lambda cell, tally: None
    """Writes down what was found of a cell."""
    began: float = field(default_factory=time.time)
    """When the run began, in seconds since 1970."""
    require: str | None = None
    """What must hold of every backend; None: the answer, and all of our own columns."""
    allow_weak: bool = False

    def judge(self, cell: Cell) -> CellResult:
        """Judge a cell, in this process or in the backend's own, unless an earlier run has."""
        if kept := self.find_kept(cell.full_id):
            return CellResult.from_dict(kept)
        result = self._judge_now(cell)
        self.keep(cell.full_id, result.as_dict())
        return result

    def _judge_now(self, cell: Cell) -> CellResult:
        worker = self.workers.get(cell.implementation.backend.source)
        known = self.known(cell)
        return (
            judge_there(worker, cell, self.options, known)
            if worker
            else run_here(cell, self.options, known)
        )

    def known(self, cell: Cell) -> tuple[KnownFailure, ...]:
        own = cell.implementation
        return tuple(
            line
            for line in self.known_failures
            if line.speaks_of(own.backend.source, own.name, cell.dtype, cell.aspect)
        )

    def is_red(self, tally: dict[str, Any]) -> bool:
        """Tell whether a verdict makes the run a failure."""
        is_required = tally["aspect"] in self.required(tally["backend"])
        if tally["verdict"] == "weak":
            return is_required and not self.allow_weak
        return tally["verdict"] == "failed" and (is_required or is_unexpected_pass(tally))

    def required(self, backend: str) -> tuple[str, ...]:
        """List the aspects of the verdict in which a backend must not fail."""
        default = "isolation" if parse_source(backend).is_column else "answer"
        return REQUIRED[self.require or default]

    def cells(self, chapter: str | None) -> list[Cell]:
        usable = [
            backend for backend in self.backends if not backend.broken and not backend.missing
        ]
        inputs = self.options.inputs
        aspects = aspects_of_inputs(inputs, self.operations[0]) if inputs else ASPECTS
        thorough = self.options.profile == "thorough"
        return cells(usable, self.operations, self.dtypes, chapter, aspects, thorough)


def aspects_of_inputs(path: str, name: str) -> tuple[str, ...]:
    """Return the columns that somebody's own arrays speak of."""
    speaks = "values", *["gradients"] * speaks_of_gradients(read_arrays(path))
    return (*speaks, "hidden NaN") if hides_numbers(CATALOGUE[name], path) else speaks


def check_inputs(path: str, operations: tuple[str, ...], dtypes: tuple[str, ...]) -> str:
    """
    The dtype in which somebody's own arrays are judged unless others are named. Raises ValueError
    where they are not the arguments of the one operation that is judged.
    """
    if len(operations) != 1:
        raise ValueError(f"--inputs: wanted one operation, by --op, got {len(operations)}")
    try:
        own = dtype_of_file(path)
        refuse_given(CATALOGUE[operations[0]], path, own)
    except ValueError as error:
        raise ValueError(f"--inputs: {str(error).removeprefix('inputs: ')}") from None
    return "" if dtypes else own


AT_ONCE = 4
"""Backends that load at the same time: their imports are timed."""


def backends_of(sources: list[str], workers: dict[str, Worker]) -> Iterator[Backend]:
    """Load the backends, here or in their own processes."""
    for number, source in enumerate(sources):
        for worker in (
            workers[near] for near in sources[number : number + AT_ONCE] if near in workers
        ):
            if worker.told is None and worker.process is None:
                worker.start()
        yield describe_backend(workers[source]) if source in workers else loaded(source)


TARGETS = {"quick": ("sm_90a",), "default": ("sm_90a",), "thorough": ("sm_90a", "sm_80")}
"""The GPUs that kernels of ours are compiled for where there is none, by profile."""


def sources_on_machine(
    backends: list[Backend], operations: tuple[str, ...], profile: str
) -> list[str]:
    """
    Name our columns as a GPU would be given their kernels, where there is none: those that have a
    kernel of one of the operations.
    """
    if os.name != "posix" or chosen_machine() is not None or devices():
        return []
    return [
        f"{backend.source}@{target}"
        for backend in backends
        if parse_source(backend.source).is_column and not backend.sampled
        if any(
            one.how in KERNELS and (not operations or one.operation.forward.name in operations)
            for one in backend.implementations
        )
        for target in TARGETS[profile]
    ]


def mark_second_opinions(backends: list[Backend]) -> None:
    """Mark the columns whose kernels the same run judges compiled, on the machine."""
    compiled = {
        parse_source(backend.source).place
        for backend in backends
        if backend.sampled and not (backend.broken or backend.missing)
    }
    for backend in backends:
        backend.is_compiled_too = not backend.sampled and backend.source in compiled


def known_failures(named: str | None, sources: list[str]) -> list[KnownFailure]:
    """
    Read the lines of the file that is named, or of those beside the backends. Raises ValueError
    where one cannot be read.
    """
    try:
        if named:
            return read_known_failures(Path(named))
        return [
            known
            for source in sources
            if (path := known_failures_file(source))
            for known in read_known_failures(path, source)
        ]
    except (OSError, ValueError) as error:
        raise ValueError(f"--known-failures: {error}") from None


def unmatched_known_failures(run: Verification) -> list[KnownFailure]:
    """Known failures that match no cell; none where --op or --dtype leaves cells out."""
    whole = not run.operations and not run.dtypes
    everything = run.cells(None) if whole and run.known_failures else []
    spoken_of = {line for cell in everything for line in run.known(cell)}
    return [line for line in run.known_failures if whole and line not in spoken_of]


def unjudged_backends(run: Verification) -> list[str]:
    """
    Say why a run must not be green though nothing failed: one line for each backend that could not
    be judged.
    """
    asked = [
        backend
        for backend in run.backends
        if backend.broken or (backend.missing and not parse_source(backend.source).is_column)
    ]
    refused = [
        f"{backend.source}: {words}"
        for backend in run.backends
        if not backend.broken
        for words in refused_of(backend, run.operations)
    ]
    return [
        f"{backend.source}: {'broken' if backend.broken else 'missing'} "
        f"({backend.broken or backend.missing})"
        for backend in asked
    ] + refused
