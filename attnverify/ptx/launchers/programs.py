"""
Whole programs and suites of tests that were written for a GPU, on the machine.

``python -m attnverify.ptx run FILE`` and ``python -m attnverify.ptx pytest tests/`` change nothing
in the code: PyTorch's tensors on "cuda" stay on the CPU, Triton's kernels and CuPy's RawKernel and
RawModule are compiled and executed here. At the end it is said how many launches ran, were stopped
by a finding, or refused, and how many were not watched for races.
"""

import runpy
import sys
import time
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

from attnverify.ptx.arguments import three
from attnverify.ptx.findings import Finding, NotUnderstood
from attnverify.ptx.kernel import LANES, Kernel, Module
from attnverify.ptx.storage.counts import Counts

__all__ = ["Log", "Progress", "execute", "logged", "on_gpu"]

SECONDS_OF_ONE = 3e-5
"""What an instruction takes for the lanes that are executed together, as measured: 18 to 51 us."""
OWN = str(Path(__file__).parents[1])


@dataclass
class Log:
    """What became of the launches."""

    ran: Counter[str] = field(default_factory=Counter)
    stopped: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    unwatched: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """The summary, as it is printed."""
        count = sum(self.ran.values())
        told = [f"{count} launches of {len(self.ran)} kernels ran, {self.seconds:.1f} s"]
        if self.stopped:
            told.append(f"{len(self.stopped)} stopped: " + "; ".join(self.stopped))
        told += [f"{times} refused: {why}" for why, times in self.refused.items()]
        if self.unwatched:
            told.append(f"{self.unwatched} not watched for races: --no-races")
        return [f"PTX machine: {line}" for line in told]


@dataclass
class Progress:
    """
    Tells what a launch will take before it is made, if that is long, and how far it is: after so
    many seconds, and again.
    """

    every: float = 10.0
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0
    told: float = 0.0

    def start(self, kernel: Kernel, grid: Any, threads: Any) -> None:
        """A launch begins; its blocks execute every instruction about once, but for loops."""
        self.began = self.told = self.clock()
        blocks, count = (prod(three(x, of)) for x, of in ((grid, "grid"), (threads, "threads")))
        together = max(1, LANES // (-(-count // 32) * 32))
        turns, instructions = -(-blocks // together), kernel.last + 1
        least = turns * instructions * SECONDS_OF_ONE
        if least >= self.every:
            told = f"{kernel.name}: {blocks} blocks of {count} threads, {together} at a time"
            told += f": {turns} times {instructions} instructions"
            self.say(f"{told}, about {least:.0f} s and what its loops take")

    @staticmethod
    def say(told: str) -> None:
        print(f"PTX machine: {told}", file=sys.stderr, flush=True)

    def __call__(self, name: str, ended: int, blocks: int) -> None:
        now = self.clock()
        if ended < blocks and now - self.told >= self.every:
            self.told, taken = now, now - self.began
            left = taken / ended * (blocks - ended)
            self.say(
                f"{name}: {ended} of {blocks} blocks in {taken:.0f} s, about {left:.0f} s to go"
            )


@contextmanager
def logged() -> Iterator[Log]:
    """Notes every launch meanwhile, by whichever launcher."""
    log, launch, find = Log(), Kernel.launch, Module.__getitem__

    @wraps(launch)
    def noted(kernel: Kernel, *args: Any, **settings: Any) -> Any:
        started = time.perf_counter()
        log.unwatched += not settings.get("races", True)
        if isinstance(settings.get("tell"), Progress):
            settings["tell"].start(kernel, *args[:2])
        try:
            done = launch(kernel, *args, **settings)
        except Finding as finding:
            log.stopped.append(f"{finding.kind} in {kernel.name}")
            raise
        finally:
            log.seconds += time.perf_counter() - started
        log.ran[kernel.name] += 1
        return done

    instead = {(Kernel, "launch"): (launch, counted(log, noted)),
               (Module, "__getitem__"): (find, counted(log, find))}  # fmt: skip
    for (thing, name), (_, now) in instead.items():
        setattr(thing, name, now)
    try:
        yield log
    finally:
        for (thing, name), (before, _) in instead.items():
            setattr(thing, name, before)


def counted(log: Log, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; what it refuses is noted."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NotUnderstood as error:
            log.refused[str(error)] += 1
            raise

    return called


@contextmanager
def on_gpu(target: int = 90, strict: bool = True, **settings: Any) -> Iterator[Log]:
    """
    Every library that is here finds the machine as its GPU; ``strict``: what PyTorch only allocated
    must be written before it is read, and no kernel leaves the views that it is given.
    """
    launchers = "attnverify.ptx.launchers"
    with ExitStack() as stack:
        log = stack.enter_context(logged())
        if find_spec("cupy") is not None:
            stack.enter_context(import_module(f"{launchers}.cupy").as_cupy(target, **settings))
        if find_spec("torch") is not None:
            stack.enter_context(import_module(f"{launchers}.torch_cuda").pretended_cuda(target))
            inline = import_module(f"{launchers}.sources.inline").inline_on_machine
            stack.enter_context(inline(target, **settings))
            if strict:
                stack.enter_context(import_module(f"{launchers}.tensors.allocations").Allocations())
                stack.enter_context(import_module(f"{launchers}.tensors.sides").Sides())
        if find_spec("triton") is not None:
            on_machine = import_module(f"{launchers}.triton").on_machine
            stack.enter_context(on_machine(target, views=strict, **settings))
        yield log


def execute(given: Namespace) -> int:
    """Run what the command line asks for; the exit status."""
    counts = Counts() if given.counts else None
    settings = {"races": not given.no_races, "timeout": given.timeout, "counts": counts}
    settings["tell"] = Progress()
    run = run_tests if given.command == "pytest" else run_program
    with on_gpu(given.target, not given.lenient, **settings) as log:
        status = run(given.arguments)
    lines = [*(counts.lines() if counts else []), *log.lines()]
    print("\n".join(lines), file=sys.stderr if given.command == "run" else sys.stdout)
    return status


def run_program(arguments: list[str]) -> int:
    """Run a file, or a module, as Python does; 1 where it ends with a finding or a refusal."""
    if not arguments:
        raise SystemExit("run: wanted a file or a module, got nothing")
    name, sys.argv = arguments[0], arguments
    try:
        if Path(name).exists():
            sys.path.insert(0, str(Path(name).resolve().parent))
            runpy.run_path(name, run_name="__main__")
        else:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except (Finding, NotUnderstood) as error:
        traceback.print_exception(error.with_traceback(of_user(error.__traceback__)))
        return 1
    return 0


def run_tests(arguments: list[str]) -> int:
    return int(import_module("pytest").main(arguments, plugins=[Ends()]))


class Ends:
    """A plugin of pytest: a finding's traceback ends at the user's line."""

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.excinfo is not None and isinstance(call.excinfo.value, Finding | NotUnderstood):
            of_user(call.excinfo.tb)


def is_user(trace: TracebackType) -> bool:
    """Whether a line is neither ours, nor Python's own, nor Triton's."""
    file = trace.tb_frame.f_code.co_filename
    return not file.startswith((OWN, "<frozen")) and "/triton/" not in file


def of_user(trace: TracebackType | None) -> TracebackType | None:
    """Cut a traceback in front of the first and behind the last line of the user's."""
    first = last = None
    at = trace
    while at is not None:
        if is_user(at):
            first, last = first or at, at
        at = at.tb_next
    if last is not None:
        last.tb_next = None
    return first
