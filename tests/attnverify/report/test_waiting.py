"""What is told while there is nothing else to tell."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from attnverify.report import waiting
from attnverify.report.waiting import Waiting
from tests.support.run_attnverify import ROOT, searched

SOON = 0.05
"""Seconds of a silence in these tests."""


@contextmanager
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What comes out of a pipe that stands for standard output."""
    end, begin = os.pipe()
    with os.fdopen(begin, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        yield end
        monkeypatch.undo()
    os.close(end)


def test_a_pipe_is_told_what_takes_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Waiting(SOON)
    with pipe(monkeypatch) as end:
        said.say("loading a.py")
        assert os.read(end, 100) == b"loading a.py ...\n"
        said.end()


def test_a_pipe_is_not_told_what_is_soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Waiting(10)
    with pipe(monkeypatch) as end:
        said.say("loading a.py")
        timer = said.timer
        said.end()
        assert timer.finished.is_set()  # it was called off
        os.set_blocking(end, False)
        with pytest.raises(BlockingIOError):
            os.read(end, 100)


def test_a_pipe_is_told_how_far_it_is_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for a mend printed one line, and nothing for 39 seconds."""
    said = Waiting(SOON)
    with pipe(monkeypatch) as end:
        said.say("trying changes")
        assert os.read(end, 100) == b"trying changes ...\n"
        said.go_on("3 changes tried")  # too soon
        said.told -= waiting.LATER
        said.go_on("40 changes tried")
        said.go_on("41 changes tried")
        assert os.read(end, 100) == b"40 changes tried\n"
        said.end()
        said.told -= waiting.LATER
        said.go_on("nobody hears it")
        os.set_blocking(end, False)
        with pytest.raises(BlockingIOError):
            os.read(end, 100)


def test_on_a_terminal_it_is_gone_when_there_is_more_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    end, begin = pty.openpty()
    with os.fdopen(begin, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        said = Waiting()
        said.say("loading a_kernel_of_a_long_name.py")
        assert os.read(end, 100) == b"loading a_kernel_of"
        said.end()
        said.end()
        assert os.read(end, 100) == b"\r\x1b[2K"
    os.close(end)


def test_what_is_told_first_waits_for_no_library() -> None:
    """A run was silent while pytest, NumPy and Hypothesis were imported: 4 to 12 seconds."""
    code = f"import {waiting.__name__}, attnverify.cli.judging, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert not {"numpy", "pytest", "torch", "hypothesis", "rich"} & {*done.stdout.split()}


def test_a_run_says_on_a_terminal_that_it_loads_before_it_does(
    tmp_path: "os.PathLike[str]",
) -> None:
    with open(os.path.join(tmp_path, "slow.py"), "w") as file:
        file.write("import numpy as np\n\ndef shift_right(x):\n    return x\n")
    end, begin = pty.openpty()
    own = {name: x for name, x in os.environ.items() if name != "CI"}
    own |= {"PYTHONPATH": searched(ROOT), "COLUMNS": "80"}
    line = [sys.executable, "-m", "attnverify", "run", "slow.py", "--profile", "quick"]
    line += ["--dtype", "float32"]
    process = subprocess.Popen(line, stdout=begin, stderr=begin, cwd=tmp_path, env=own)
    os.close(begin)
    told = b""
    try:
        while part := os.read(end, 65536):
            told += part
    except OSError:  # so ends a terminal whose program has ended
        pass
    process.wait()
    words = told.decode()
    assert words.index("loading slow.py ...") < words.index("\r\x1b[2K") < words.index("cells, ")
    os.close(end)
