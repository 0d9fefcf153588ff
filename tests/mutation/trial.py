"""One mutant after the other in a copy of the tree, and what the tests say to it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random

from tests.mutation.changes import Mutant, find_mutants

PATIENCE = 5
"""How often the time that tests take without a mutant they may take with one."""
NO_TESTS = 5
"""The exit status of pytest where nothing was collected."""
LIBRARIES = ("numpy", "torch", "hypothesis.extra.numpy", "pytest")
"""Imported once: each run of tests is a fork that has them already."""


Run = Callable[[Path, tuple[str, ...], float], int]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: killed by which tests, or survived, and in how many seconds."""

    killed_by: str
    seconds: float


def copy_tree(root: Path, to: Path) -> None:
    """What git knows of the tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name)


def draw_mutants(root: Path, seed: int, files: Iterable[str]) -> list[Mutant]:
    """All mutants of these files in an order drawn by the seed, the files taking turns."""
    turns = []
    for path in files:
        mutants, rng = find_mutants(path, (root / path).read_bytes()), Random(f"{seed} {path}")
        rng.shuffle(mutants)
        turns += [(turn, rng.random(), mutant) for turn, mutant in enumerate(mutants)]
    return [mutant for _, _, mutant in sorted(turns, key=lambda each: each[:2])]


class Limits:
    """The seconds after which a run of tests has noticed: it hangs."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, ...], float] = {}

    def of(self, tree: Path, tests: tuple[str, ...]) -> float:
        """
        Measured without a mutant, where a test that is red would kill everybody; 0 where no test
        has the words.
        """
        if tests not in self.seconds:
            start = time.monotonic()
            status = run_tests(tree, tests, 3600)
            if status not in (0, NO_TESTS):
                raise SystemExit(f"red without a mutant: pytest {' '.join(tests)}")
            seconds = 30 + PATIENCE * (time.monotonic() - start)
            self.seconds[tests] = 0.0 if status == NO_TESTS else seconds
        return self.seconds[tests]


def try_mutant(
    tree: Path, mutant: Mutant, limits: dict[tuple[str, ...], float], run: Run | None = None
) -> Verdict:
    """Plant a mutant in the tree, run the tests until one is red, and put the file back."""
    file, start = tree / mutant.path, time.monotonic()
    source = file.read_bytes()
    try:
        write(file, mutant.applied(source))
        run = run or run_tests
        red = (tests for tests, seconds in limits.items() if seconds and run(tree, tests, seconds))
        killed = next(red, ())
    finally:
        write(file, source)
    return Verdict(" ".join(killed), round(time.monotonic() - start, 1))


def write(file: Path, source: bytes) -> None:
    """A file of a time of its own: compiled modules are known by size and second alone."""
    later = int(file.stat().st_mtime) + 2
    file.write_bytes(source)
    os.utime(file, (later, later))


def run_tests(tree: Path, arguments: tuple[str, ...], seconds: float) -> int:
    """The exit status of pytest in the tree, in a fork that has the libraries; -1 out of time."""
    for name in LIBRARIES:
        import_module(name)
    child = os.fork()
    if child == 0:
        os._exit(_run_here(tree, arguments))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _run_here(tree: Path, arguments: tuple[str, ...]) -> int:
    os.setpgid(0, 0)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.chdir(tree)
    sys.path[0] = str(tree)
    for name in [each for each in sys.modules if each.split(".")[0] in ("tests", "attnverify")]:
        del sys.modules[name]
    import pytest

    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *arguments]))
