"""Other programs that a step of ``attnverify gpu-report`` runs, and what they said."""

import os
import subprocess

from attnverify import ROOT

__all__ = ["program", "quote_last_lines"]


def program(
    command: list[str], seconds: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program from the root of the repository."""
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=seconds, check=False
    )


def quote_last_lines(ran: subprocess.CompletedProcess[str]) -> str:
    """Quote what a program said at its end."""
    return " | ".join((ran.stdout + ran.stderr).strip().splitlines()[-8:])[-1500:]
