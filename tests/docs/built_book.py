"""The book, built without a network: once a run, whichever process comes first."""

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

from attnverify import ROOT

NO_NETWORK = """
import socket

def refused(*arguments, **named):
    raise OSError("the build wanted the network")

socket.socket.connect = socket.socket.connect_ex = refused
socket.getaddrinfo = socket.create_connection = refused
"""
PATIENCE = 900.0
"""Seconds for a build on a busy machine."""


def offline(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a Python command in which every connection is refused."""
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def build(builder: str, source: Path, folder: Path) -> str:
    """
    Build a copy of the book, warnings as errors, and return what was said; the assertion shows it
    where the build fails.
    """
    command = [
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        builder,
        "-d",
        str(folder / "read"),
        str(source),
        str(folder / builder),
    ]
    done = offline(command, folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


def build_once(folder: Path, source: Path = ROOT / "docs") -> Path:
    """Build the site in a folder that is not there yet; where it is, wait for who builds in it."""
    built, failed = folder / "built", folder / "failed"
    try:
        folder.mkdir()
    except FileExistsError:
        latest = monotonic() + PATIENCE
        while not (built.exists() or failed.exists()) and monotonic() < latest:
            sleep(0.2)
        assert built.exists(), "the build failed, in the process that began it"
        return folder / "html"
    try:
        build("html", source, folder)
    except BaseException:
        failed.touch()
        raise
    built.touch()
    return folder / "html"
