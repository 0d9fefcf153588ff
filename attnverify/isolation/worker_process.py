"""
The process in which one backend is judged, seen from its parent: started, asked, watched, ended.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

from attnverify import PACKAGE
from attnverify.inputs.recipe import Recipe, in_letters
from attnverify.isolation.readings import (
    Moment,
    available,
    installed,
    read_moment,
    read_resident_memory,
    seconds_since,
)
from attnverify.isolation.status_board import SIZE, SLOW, StatusBoard, on_case_begun
from attnverify.verdicts.one_case import found_so_far

POLL = 0.05


NEARLY_NOTHING = 0.03
"""Of a machine's memory: where no more is left, the system begins to end processes."""


LAST_WORDS = 12
"""Lines of its output that are shown with a failure."""


OF_PYTEST = ("PYTEST_VERSION", "PYTEST_CURRENT_TEST")
"""Variables by which a file tells that it is under test, and may choose other configurations."""


START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from attnverify.isolation.worker "
    "import "
    "main; main()"
)
"""``python -m attnverify.isolation.worker`` with the modules that its parent sees."""


@dataclass(frozen=True)
class Limits:
    """
    What a case may take.

    seconds  without a sign of life, in each case, less what the process waited for a processor; an
             import and the specification's own answers may take ten times as long
    memory   MB that the process may hold beyond what it held once the backend was loaded; 0: three
             quarters of what the machine has, whoever else is there, unless that runs out
    output   MB on stdout and stderr in one cell
    """

    seconds: float = 60.0
    memory: int = 0
    output: int = 100

    @property
    def most(self) -> float:
        """The memory limit in MB."""
        return self.memory or 0.75 * installed()

    def exceeded(self, more: float) -> str:
        """Say that a process holds too much, or ""."""
        if more > self.most:
            return f"out of memory: it took {more:.0f} MB, {self.most:.0f} are allowed"
        free = available()
        if not self.memory and free < min(more, NEARLY_NOTHING * installed()):
            return f"out of memory: it took {more:.0f} MB, and the machine has {free:.0f} MB left"
        return ""


class WorkerDied(Exception):
    """
    The worker is gone: how, in ``words``, and what it was about to run; ``hung``: the seconds after
    which one that gave no sign of life was ended, 0 for another.
    """

    def __init__(self, words: str, case: dict[str, Any], output: str, hung: float = 0.0) -> None:
        self.words, self.case, self.hung = words, case, hung
        self.headline = f"{words} {describe_case(case)}"
        slow = [describe_slow(hung, case)] if hung and "during" not in case else []
        self.last_output = [*slow, *last_output(output)]
        super().__init__("\n  ".join([self.headline, *self.last_output]))


def describe_case(case: dict[str, Any]) -> str:
    """Say where it happened: ``on <recipe>``, ``during its import``"""
    drawn = (
        str(Recipe(**case["recipe"]))
        if case.get("recipe")
        else case["check"]["name"]
        if case.get("check")
        else ""
    )
    if "during" in case:
        return f"during {case['during']}" + (f" ({drawn})" if drawn else "")
    return f"on {drawn}" if drawn else "before its import"


def describe_slow(seconds: float, case: dict[str, Any]) -> str:
    """Say of a call that was ended for its time how large it is, and how to give it more."""
    sizes = in_letters((case.get("recipe") or {}).get("sizes", {}))
    told = f"it is slow, or stuck; --case-seconds {5 * seconds:g} gives it longer"
    return f"{sizes}: {told}" if sizes else told


def last_output(output: str) -> list[str]:
    """Quote what it printed at last, under a heading."""
    return ["its last words:", *(f"  {line}" for line in output.splitlines())] if output else []


@dataclass(eq=False)
class Worker:
    """
    The process in which one backend is judged; it is started when it is needed, and replaced when
    it has died.
    """

    source: str
    limits: Limits
    told: dict[str, Any] | None = None
    """What the backend said of itself when it was loaded."""
    process: "subprocess.Popen[bytes] | None" = None
    held: float = 0.0
    """The memory of the process once the backend was loaded, in MB; 0 until then."""

    def start(self) -> None:
        """Start the process; it loads the backend at once."""
        self.channel, theirs = Pipe()
        self.file, shared = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 (they live as long as the process)
        shared.truncate(SIZE)
        self.board, self.held, self.printed = StatusBoard(shared.fileno()), 0.0, 0
        numbers = theirs.fileno(), shared.fileno()
        command = [
            sys.executable,
            "-u",
            "-X",
            "faulthandler",
            "-c",
            START,
            json.dumps(sys.path),
            *map(str, numbers),
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.file,
            stderr=self.file,
            pass_fds=numbers,
            start_new_session=True,
            env={name: x for name, x in os.environ.items() if name not in OF_PYTEST},
        )
        theirs.close()
        shared.close()
        self.say(self.source)

    def ready(self) -> dict[str, Any]:
        """Wait until the backend is loaded; what it says of itself. Raises Died."""
        if self.process is None:
            self.start()
        if not self.held or self.told is None:
            self.told = self.answer()
            self.held = max(self.memory(), 1.0)
        return self.told

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """
        Obtain the worker's answer to a request. Raises Died, after which the next request gets
        another process.
        """
        self.ready()
        self.printed = os.fstat(self.file.fileno()).st_size
        self.file.truncate(0)  # the worker writes on behind the hole
        number = secrets.token_hex(8)
        self.say(request | {"number": number})
        try:
            answer = self.answer()
        except BaseException:
            # a late reply must not be read as the answer to the next request
            self.close()
            raise
        if "died" in answer:
            raise self.dead(answer["died"])
        if answer.get("number") != number:
            raise self.dead("forged: it sent what nobody had asked for,")
        return answer

    def say(self, message: Any) -> None:
        with suppress(OSError):  # whoever does not listen has died, and is asked how
            self.channel.send_bytes(json.dumps(message).encode())

    def answer(self) -> dict[str, Any]:
        """Wait for an answer and watch meanwhile. Raises Died."""
        count, begun, since, seconds = -1, 0, self.now(), SLOW * self.limits.seconds
        while not self.channel.poll(POLL):
            mark = self.board.read()
            if mark is not None and mark.count != count:
                case = mark.case or {}
                if (many := case.get("begun", 0) - begun) > 0:
                    begun += many
                    on_case_begun.get()(case, many)
                if "found" in case:
                    found_so_far.get()(case["found"])
                count, since, seconds = mark.count, self.now(), mark.factor * self.limits.seconds
            if words := self.trouble():
                raise self.dead(words)
            if seconds_since(since, self.now()) > seconds:
                raise self.stuck(seconds)
        try:
            found: dict[str, Any] = json.loads(self.channel.recv_bytes())
        except (EOFError, OSError, ValueError):
            raise self.dead(self.end()) from None
        return found

    def stuck(self, seconds: float) -> WorkerDied:
        """End a process that gave no sign of life; it writes down where it stands."""
        assert self.process is not None
        with suppress(OSError):
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(2 * POLL)
        return self.dead(f"did not answer in {seconds:g} s", seconds)

    def trouble(self) -> str:
        """Say what has gone wrong while no answer came, or ""."""
        assert self.process is not None
        if self.process.poll() is not None and not self.channel.poll(0):
            return self.end()
        if words := self.excess():
            return words
        if os.fstat(self.file.fileno()).st_size - self.printed > self.limits.output * 2**20:
            return f"flooded: more than {self.limits.output} MB of output"
        return ""

    def excess(self) -> str:
        """
        Say that it holds too much memory, or "". A child that was forked a moment ago counts the
        same pages again until it is another program, so that it is looked at twice.
        """
        if not self.held or not self.limits.exceeded(self.memory() - self.held):
            return ""
        time.sleep(2 * POLL)
        return self.limits.exceeded(self.memory() - self.held)

    def end(self) -> str:
        """Say how the process ended by itself, in words."""
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        status = self.process.poll()
        if status is None:
            return "broke off: it closed what it was not given"
        if status == -signal.SIGKILL:
            return "killed: signal 9 (SIGKILL), as by a machine that is out of memory"
        return (
            f"crashed: signal {-status} ({signal.Signals(-status).name})"
            if status < 0
            else f"exited with status {status}"
        )

    def dead(self, words: str, hung: float = 0.0) -> WorkerDied:
        """End the process with all that it has started; what is to be told of it."""
        output = self.output()
        self.close()
        mark = self.board.read()
        return WorkerDied(words, (mark and mark.case) or {}, output, hung)

    def close(self) -> None:
        """End the process; the next request starts another."""
        if self.process is not None:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.channel.close()
            self.file.close()
            self.process = None

    def now(self) -> Moment:
        assert self.process is not None
        return read_moment(self.process.pid)

    def memory(self) -> float:
        assert self.process is not None
        return read_resident_memory(self.process.pid)

    def output(self) -> str:
        """Quote the last lines that it has printed; of a traceback those that are its own."""
        start = max(self.printed, os.fstat(self.file.fileno()).st_size - (1 << 16))
        text = os.pread(self.file.fileno(), 1 << 16, start).decode(errors="replace")
        lines = [
            line.rstrip()[:160]
            for line in text.splitlines()
            if line.strip() and not OURS_IN_A_TRACEBACK.match(line)
        ]
        return "\n".join(lines[-LAST_WORDS:])


OURS_IN_A_TRACEBACK = re.compile(
    rf'Extension modules: |\s+File "({re.escape(str(PACKAGE))}|<frozen|<string>)'
)
