"""
Files of public repositories, loaded from checkouts that you have: ``PUBLIC_KERNELS`` names the
folder in which they lie, each below its repository's name.

What has to be changed before a file runs here is a replacement of text, made in a temporary copy;
one that no longer finds its text is refused, so that nothing is judged that is not what it says.
"""

import atexit
import os
import shutil
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

VARIABLE = "PUBLIC_KERNELS"


def checkout(repository: str) -> Path:
    """Find the checkout of a repository."""
    if VARIABLE not in os.environ:
        raise RuntimeError(f"{VARIABLE}: wanted the folder that holds {repository}, got nothing")
    found = Path(os.environ[VARIABLE], repository)
    if not found.is_dir():
        raise RuntimeError(
            f"{VARIABLE}: wanted a folder that holds {repository}, got {found.parent}"
        )
    return found


def read(repository: str, file: str, *replacements: tuple[str, str]) -> str:
    """Read a file with its replacements made."""
    text = (checkout(repository) / file).read_text()
    for old, new in replacements:
        if old not in text:
            raise RuntimeError(
                f"{repository}/{file}: wanted a file that holds {old!r}, got another"
            )
        text = text.replace(old, new)
    return text


def load(repository: str, file: str, *replacements: tuple[str, str]) -> ModuleType:
    """Import a Python file, from a temporary copy: Triton reads its kernels' source there."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = Path(folder, Path(file).name)
    copy.write_text(read(repository, file, *replacements))
    spec = spec_from_file_location(f"public_{copy.stem.replace('-', '_')}", copy)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def between(text: str, start: str, end: str) -> str:
    """Cut out what begins with a passage and ends before another."""
    if start not in text or end not in text:
        raise RuntimeError(f"wanted a file with {start!r} and {end!r} in it, got another")
    return text[text.index(start) : text.index(end)]


def alibi_slopes(heads: int) -> list[float]:
    """Slopes as ALiBi has them, for any number of heads."""
    n = 2 ** (heads.bit_length() - 1)
    return [2 ** (-8 / n * (h + 1 if h < n else h - n + 0.5)) for h in range(heads)]
