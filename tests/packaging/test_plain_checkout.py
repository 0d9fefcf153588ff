"""The main job starts from a plain checkout, where the extras of this project are not installed."""

import os
import subprocess
import sys
from pathlib import Path

from attnverify import ROOT

EXTRAS = (
    "actionlint",
    "distributed",
    "docutils",
    "jsonschema",
    "onnxruntime",
    "onnxscript",
    "playwright",
    "sphinx",
    "threadpoolctl",
    "yaml",
)
"""What a GPU box has not, of that which our tests import."""


def collect(folder: Path, *missing: str) -> subprocess.CompletedProcess[str]:
    """Collect the differential tests where these packages cannot be imported."""
    (folder / "not_installed.py").write_text(
        f"import sys\n\nsys.modules.update(dict.fromkeys({missing!r}))\n"
    )
    options = ["-m", "differential", "--co", "-q", "-p", "no:cacheprovider", "-p", "not_installed"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_main_job_needs_no_extra(tmp_path: Path) -> None:
    done = collect(tmp_path, *EXTRAS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_a_package_that_it_needs_is_missed(tmp_path: Path) -> None:
    assert collect(tmp_path, "ml_dtypes").returncode != 0
