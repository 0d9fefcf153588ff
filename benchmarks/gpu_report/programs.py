"""The programs that ``python -m benchmarks.gpu_report`` and its steps run, and what they said."""

import json
import os
import subprocess
import sys
from pathlib import Path

from attnverify import PACKAGE, ROOT

__all__ = ["GIVEN", "build_command", "program", "quote_last_lines", "tell_context"]

GIVEN = "ATTNVERIFY_GPU_STEP"
"""The variable of the environment that tells a step its context."""

ON_ITS_OWN = ("-p", "no:cacheprovider", "--noconftest", "-o", "addopts=", "-o", "markers=gpu")
"""A run of pytest that nothing of a repository has a part in."""


def build_command(name: str, answer: Path | None = None) -> list[str]:
    """The command of a step: its test, whose output is not captured, and where pytest answers."""
    configured = ["-c", str(PACKAGE / "pytest.ini"), "--rootdir", str(ROOT), *ON_ITS_OWN]
    written = [f"--junitxml={answer}"] if answer else []
    file = Path(__file__).with_name("on_device.py")
    test = f"{file}::test_a_step_passes_on_this_device[{name}]"
    return [sys.executable, "-m", "pytest", *configured, "-m", "gpu", "-q", "-s", *written, test]


def tell_context(device: str, quick: bool, seconds: float) -> dict[str, str]:
    """Tell a step where it runs, how much is asked of it, and in how many seconds."""
    return {GIVEN: json.dumps({"device": device, "quick": quick, "seconds": seconds})}


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
