"""
The board: a small shared memory on which a worker writes what it is about to run, and which
outlives the worker.
"""

import json
import mmap
import os
import struct
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

SIZE = 1 << 16
SLOW = 10.0
"""How many times as long as a case an import, or the specification's own answer, may take."""


on_case_begun: ContextVar[Callable[[dict[str, Any], int], None]] = ContextVar(
    "begun", default=lambda case, many: None
)
"""
Who is told in the parent which case has begun, and of how many it is the last
(attnverify/report/live/progress.py).
"""


@dataclass(frozen=True)
class StatusMark:
    """
    What was written: the how-manieth, how many times the usual limit it may take, and what is run.
    """

    count: int = 0
    factor: float = SLOW
    case: "dict[str, Any] | None" = None


class StatusBoard:
    """The shared memory behind a file's descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.memory, self.count, self.process = mmap.mmap(descriptor, SIZE), 0, os.getpid()

    def write(self, case: dict[str, Any], factor: float) -> None:
        """
        Write the text before its number: a reader that sees the new number sees the new text or
        invalid JSON, never an older text.
        """
        if os.getpid() != self.process:
            os._exit(0)  # a copy of the worker, which a backend has forked and let run on
        text = json.dumps(case).encode()[: SIZE - 20]
        self.count += 1
        self.memory[20 : 20 + len(text)] = text
        self.memory[:20] = struct.pack("<QdI", self.count, factor, len(text))

    def read(self) -> StatusMark | None:
        """Read what was written last; None while it is being written."""
        count, factor, length = struct.unpack("<QdI", self.memory[:20])
        if not count:
            return StatusMark()
        try:
            return StatusMark(count, factor, json.loads(self.memory[20 : 20 + length]))
        except ValueError:
            return None
