"""
What is told while there is nothing else to tell: a file is loaded, a contestant is timed. Of the
standard library alone, for it stands before all that takes long to import.
"""

import os
import sys
from contextlib import suppress
from threading import Timer

from attnverify.report.terminal_colours import terminal_width

FIRST = 2.0
"""Seconds of silence after which a pipe is told what is being done: somebody waits for a sign."""


class Waiting:
    """
    One line that says what is being done: on a terminal at once, and gone when there is more to
    tell; through a pipe as soon as it has taken ``seconds``.
    """

    def __init__(self, seconds: float = FIRST) -> None:
        self.seconds, self.stream, self.timer = seconds, -1, Timer(0, self.end)

    def say(self, words: str) -> None:
        """Say what is begun, in place of what was said before."""
        self.end()
        with suppress(OSError, ValueError):  # what is no file, or closed, has none
            self.stream = os.dup(sys.stdout.fileno())
            width, line = terminal_width(sys.stdout), f"{words} ..."
            if sys.stdout.isatty() and not os.environ.get("CI"):
                self.write(line[: width - 1])
            else:
                self.timer = Timer(self.seconds, self.write, [f"{line}\n"])
                self.timer.daemon = True
                self.timer.start()

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
