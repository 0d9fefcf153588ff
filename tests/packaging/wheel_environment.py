"""A fresh environment into which the wheel is installed, beside somebody else's project."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from attnverify import COLUMNS, ROOT

SOURCES = ("attnverify", *COLUMNS, "pyproject.toml", "README.md", "LICENSE")


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built from a copy by the build backend itself."""
    source, out = copy_sources(folder / "source"), folder / "dist"
    program = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    run([sys.executable, "-c", program], source)
    return next(out.glob("attnverify-*.whl"))


def copy_sources(folder: Path) -> Path:
    """What an installation is built from, where the build may leave behind what it likes."""
    ignore = shutil.ignore_patterns("__pycache__")
    folder.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that must succeed, with nothing of this checkout on its path."""
    hidden = ("PYTHONPATH", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command, cwd=folder, env=kept | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@dataclass(frozen=True)
class Environment:
    """An environment of its own: its interpreter, and where its packages lie."""

    python: str
    packages: Path

    def run(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return run([self.python, *arguments], folder)


def create_environment(folder: Path, wheel: Path) -> Environment:
    """
    An environment with the wheel; what the wheel depends on is seen from the environment that runs
    the tests, so that nothing is fetched.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    line = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(run(line, folder).stdout.strip())
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(ours)) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    run([*pip, "--quiet", "--no-deps", "--no-index", "--ignore-installed", str(wheel)], folder)
    return Environment(str(python), packages)
