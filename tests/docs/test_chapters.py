"""The chapters that teach by typing: every block of theirs is executed, in order, as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnverify import ROOT

CHAPTERS = ROOT / "docs" / "chapters"
BLOCK = re.compile(
    r"^\.\. code-block:: (\w+)\n(?:   :caption: (.+)\n)?\n((?:(?:   .*)?\n)+)", re.MULTILINE
)
SLOPES = """
import numpy as np

from attnverify import spec

PRECISION = "wide"


def get_slopes(n_heads, dtype="float64"):
    return spec.get_slopes(n_heads).astype(dtype)
"""


def blocks(text: str) -> list[tuple[str, str, str]]:
    """The code blocks of a page, in order: language, caption and text."""
    return [
        (language, caption, re.sub(r"^   ", "", body, flags=re.MULTILINE))
        for language, caption, body in BLOCK.findall(text)
    ]


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block of shell with this Python first on the path, and `attnverify` for its module."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, asked in (("python", ""), ("attnverify", "-m attnverify ")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {asked}"$@"\n')
        (commands / name).chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
    }
    environment |= {
        "PATH": os.pathsep.join((str(commands), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
        "PYTEST_ADDOPTS": "-p attnverify.plugin",  # what an installation does by its entry point
    }
    command = ["bash", "-euo", "pipefail", "-c", line]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )


def follow(text: str, folder: Path, skip: str = "") -> None:
    """Type what a chapter says, and look for what it shows."""
    last = ""
    for language, caption, body in blocks(text):
        if language == "python" and caption:
            (folder / caption).parent.mkdir(exist_ok=True)
            (folder / caption).write_text(body)
        elif language == "sh" and not (skip and skip in body):
            done = run(body, folder)
            assert done.returncode == 0, body + done.stdout + done.stderr
            last = done.stdout
        elif language == "text":
            assert [line for line in body.splitlines() if line not in last] == [], last


@pytest.mark.docs
def test_attention_in_blocks_is_written_read_and_mended_as_the_chapter_says(tmp_path: Path):
    numpy_part, _, _ = (CHAPTERS / "blocked_attention.rst").read_text().partition("In Triton\n---")
    assert "text" in [language for language, _, _ in blocks(numpy_part)]
    follow(numpy_part, tmp_path)


@pytest.mark.thorough
def test_attention_in_blocks_is_mended_put_into_triton_and_timed(tmp_path: Path):
    pytest.importorskip("triton")
    follow((CHAPTERS / "blocked_attention.rst").read_text(), tmp_path)


def test_the_ways_into_ones_own_tests_are_as_the_chapter_says(tmp_path: Path):
    (tmp_path / "my_kernels.py").write_text(SLOPES)
    text = (CHAPTERS / "where_you_work.rst").read_text()
    follow(text, tmp_path, skip="attnverify bench")
    done = run("python -m pytest -q tests/test_slopes.py", tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert "1 passed" in run(f"{selected(text)} -p no:cacheprovider", tmp_path).stdout


def selected(text: str) -> str:
    """The chapter's line of generated tests."""
    (line,) = [body for _, _, body in blocks(text) if "--attn-backend" in body]
    return line.strip()


def test_a_block_that_fails_is_noticed(tmp_path: Path):
    with pytest.raises(AssertionError):
        follow(".. code-block:: sh\n\n   false\n\n", tmp_path)
    with pytest.raises(AssertionError):
        follow(".. code-block:: sh\n\n   echo a\n\n.. code-block:: text\n\n   b\n\n", tmp_path)
