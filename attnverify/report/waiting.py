"""
What is told while there is nothing else to tell: a file is loaded, a contestant is timed. Of the
standard library alone, for it stands before all that takes long to import.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from attnverify.report.terminal_colours import terminal_width

FIRST = 2.0
"""Seconds of silence after which a pipe is told what is being done: somebody waits for a sign."""


LATER = 10.0
"""Seconds after which a pipe is told again how far it is."""


class Waiting:
    """
    One line that says what is being done: on a terminal at once, and gone when there is more to
    tell; through a pipe as soon as it has taken ``seconds``.
    """

    def __init__(self, seconds: float = FIRST) -> None:
        self.seconds, self.stream, self.timer = seconds, -1, Timer(0, self.end)
        self.told = 0.0

    def say(self, words: str) -> None:
        """Say what is begun, in place of what was said before."""
        self.end()
        self.told = time.monotonic()
        with suppress(OSError, ValueError):  # what is no file, or closed, has none
            self.stream = os.dup(sys.stdout.fileno())
            width, line = terminal_width(sys.stdout), f"{words} ..."
            if sys.stdout.isatty() and not os.environ.get("CI"):
                self.write(line[: width - 1])
            else:
                self.timer = Timer(self.seconds, self.write, [f"{line}\n"])
                self.timer.daemon = True
                self.timer.start()

    @contextmanager
    def meanwhile(self, words: str, is_silent: bool = False) -> Iterator[None]:
        """Say what is done in a block, unless all that may be printed is something else."""
        if not is_silent:
            self.say(words)
        try:
            yield
        finally:
            self.end()

    def go_on(self, words: str) -> None:
        """Say how far what was begun is: in the same line, or in another now and then."""
        now, is_shown = time.monotonic(), self.stream >= 0 and os.isatty(self.stream)
        if self.stream >= 0 and now - self.told >= (self.seconds if is_shown else LATER):
            self.told = now
            line = words[: terminal_width(sys.stdout) - 1]
            self.write(f"\r\x1b[2K{line}" if is_shown else f"{words}\n")

    def write(self, words: str) -> None:
        with suppress(OSError):  # nobody may be there any more
            os.write(self.stream, words.encode())

    def end(self) -> None:
        """Take the line back, or keep silent."""
        if self.stream < 0:
            return
        self.timer.cancel()
        if os.isatty(self.stream):
            self.write("\r\x1b[2K")
        os.close(self.stream)
        self.stream = -1


waiting = Waiting()
"""That of a command, which ends it where its plugin of pytest has loaded what it was asked for."""
