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
    r"^\.\. code-block:: (\w+)\n(?:   :caption: (.+)\n)?(?:   :\S+: .+\n)*\n((?:(?:   .*)?\n)+)",
    re.MULTILINE,
)
STATUS_1 = "ends with status 1"
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


def run(line: str, folder: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """
    Run a block of shell with a Python first on the path, and `attnverify` for its module. This one
    finds the checkout; any other has the package installed.
    """
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, asked in (("python", ""), ("attnverify", "-m attnverify ")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{python}" {asked}"$@"\n')
        (commands / name).chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
    }
    environment |= {
        "PATH": os.pathsep.join((str(commands), os.environ["PATH"])),
        "PYTHONPATH": str(folder),
    }
    if python == sys.executable:
        environment["PYTHONPATH"] += os.pathsep + str(ROOT)
        environment["PYTEST_ADDOPTS"] = "-p attnverify.plugin"  # as an installation's entry point
    command = ["bash", "-euo", "pipefail", "-c", line]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )


def missing_lines(shown: str, printed: str) -> list[str]:
    """List the lines of a page that were not printed; a log folds them."""
    words = " ".join(printed.split())
    return [line for line in shown.splitlines() if " ".join(line.split()) not in words]


def follow(text: str, folder: Path, skip: str = "", python: str = sys.executable) -> None:
    """Type what a chapter says, and look for what it shows."""
    last = ""
    for language, caption, body in blocks(text):
        if language in ("python", "json") and caption:
            (folder / caption).parent.mkdir(exist_ok=True)
            (folder / caption).write_text(body)
        elif language == "sh" and not (skip and skip in body):
            done = run(body, folder, python)
            assert done.returncode == (caption == STATUS_1), body + done.stdout + done.stderr
            last = done.stdout
        elif language == "text":
            assert missing_lines(body, last) == [], last


@pytest.mark.docs
@pytest.mark.xdist_group("docs")  # first of them: it needs no page, which another process builds
def test_the_tutorial_works_as_it_stands(tmp_path: Path):
    copy = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    text = (copy / "docs" / "chapters" / "first_kernel.rst").read_text()
    last = ""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST") and name != "PYTHONPATH"
    }
    for language, caption, block in blocks(text):
        if caption and language == "python":
            (copy / caption).write_text(block)
        elif language == "sh":
            command = ["bash", "-euo", "pipefail", "-c", block]
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=600
            )
            last = done.stdout
            wanted = caption == STATUS_1
            assert done.returncode == wanted, block + done.stdout + done.stderr
        else:
            assert missing_lines(block, last) == [], last


@pytest.mark.docs
@pytest.mark.xdist_group("docs")
def test_attention_in_blocks_is_written_read_and_mended_as_the_chapter_says(tmp_path: Path):
    numpy_part, _, _ = (CHAPTERS / "blocked_attention.rst").read_text().partition("In Triton\n---")
    assert "text" in [language for language, _, _ in blocks(numpy_part)]
    follow(numpy_part, tmp_path)


@pytest.mark.docs
@pytest.mark.xdist_group("docs")
def test_an_operation_of_ones_own_is_specified_and_judged_as_the_chapter_says(tmp_path: Path):
    follow((CHAPTERS / "your_own_operation.rst").read_text(), tmp_path)


@pytest.mark.thorough
def test_attention_in_blocks_is_mended_put_into_triton_and_timed(tmp_path: Path):
    pytest.importorskip("triton")
    follow((CHAPTERS / "blocked_attention.rst").read_text(), tmp_path)


def go_the_ways_into_ones_own_tests(folder: Path, python: str) -> None:
    """
    Type the chapter's three ways into a project: an assertion, generated tests, the command;
    tests/packaging goes them where the wheel is installed.
    """
    (folder / "my_kernels.py").write_text(SLOPES)
    text = (CHAPTERS / "where_you_work.rst").read_text()
    follow(text, folder, skip="attnverify bench", python=python)
    done = run("python -m pytest -q tests/test_slopes.py", folder, python)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert "1 passed" in run(f"{selected(text)} -p no:cacheprovider", folder, python).stdout


def test_the_hook_before_a_commit_stops_a_wrong_kernel(tmp_path: Path):
    pytest.importorskip("pre_commit", reason="the extra test brings it")
    source, project = tmp_path / "source", tmp_path / "project"
    project.mkdir()
    version = commit(source, {HOOKS: (ROOT / HOOKS).read_text()})
    (block,) = [body for _, name, body in BLOCKS if name == ".pre-commit-config.yaml"]
    block = re.sub("repo: [^ ]*", f"repo: {source}", block).replace("TAG", version)
    files = {".pre-commit-config.yaml": block, "my_kernels.py": SLOPES, "other.py": "1 / 0\n"}
    commit(project, files)
    check = f"PRE_COMMIT_HOME={tmp_path}/home {sys.executable} -m pre_commit run --all-files -v"
    right = run(check, project)
    assert right.returncode == 0, right.stdout + right.stderr
    assert "my_kernels.py: right in float32 (" in right.stdout
    (project / "my_kernels.py").write_text(SLOPES.replace("n_heads)", "n_heads) * 1.001"))
    wrong = run(check, project)
    assert wrong.returncode == 1 and "my_kernels.py: wrong in float32: " in wrong.stdout


HOOKS = ".pre-commit-hooks.yaml"
BLOCKS = blocks((CHAPTERS / "where_you_work.rst").read_text())


def commit(folder: Path, files: dict[str, str]) -> str:
    """Commit files to a repository of their own, and tell which commit it is."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder)]
    for line in (["init", "-q"], ["add", "."], ["commit", "-q", "--no-verify", "-m", "files"]):
        subprocess.run([*git, *line], check=True)
    line = [*git, "rev-parse", "HEAD"]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


def selected(text: str) -> str:
    """The chapter's line of generated tests."""
    (line,) = [body for _, _, body in blocks(text) if "--attn-backend" in body]
    return line.strip()


def test_a_block_that_fails_is_noticed(tmp_path: Path):
    with pytest.raises(AssertionError):
        follow(".. code-block:: sh\n\n   false\n\n", tmp_path)
    with pytest.raises(AssertionError):
        follow(f".. code-block:: sh\n   :caption: {STATUS_1}\n\n   true\n\n", tmp_path)
    with pytest.raises(AssertionError):
        follow(".. code-block:: sh\n\n   echo a\n\n.. code-block:: text\n\n   b\n\n", tmp_path)
