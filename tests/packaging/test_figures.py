"""The figures of the house: counted as they are said, and within the house's limits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnverify import ROOT

MODULES = {
    "verify/__init__.py": "",
    "verify/first.py": "from verify.room import second\n\ndef told(): ...\n",
    "verify/room/__init__.py": "",
    "verify/room/second.py": "def say_it():\n    import verify.first\n\ndef came(): 'rel_shift'\n",
    "verify/faults/third.py": "def shown(): ...\n",
    "verify/third.py": "@property\ndef a_name():\n    'The name.'\n\ndef b_c():\n    'Tell it.'\n",
    "spec/shifts.py": "__all__ = ['rel_shift']\n",
    **{f"{folder}/__init__.py": "" for folder in ("torch_impl", "cupy_impl", "tests")},
}
"""A small house with a circle, and with two names of one word among five."""


def figures(*checkouts: Path) -> dict[str, list[str]]:
    line = [sys.executable, str(ROOT / ".ci" / "figures"), *map(str, checkouts)]
    table = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    rows = [re.split(r" *\| *", row)[1:-1] for row in table.splitlines()[2:]]
    return {name: values for name, *values in rows}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """The figures of this checkout and of the small house."""
    small = tmp_path_factory.mktemp("small")
    for name, text in MODULES.items():
        (small / name).parent.mkdir(parents=True, exist_ok=True)
        (small / name).write_text(text)
    return {name: (here, there) for name, (here, there) in figures(ROOT, small).items()}


@pytest.mark.parametrize(("figure", "value"), {
    "circles of modules, of rooms": "1, 1",
    "function names of one word": "40% (2 of 5)",
    "first words of the functions' docstrings": "Tell 50%, rel_shift 50%",
    "imports between modules of the judge, without PTX": "2",
    "files of the judge that name an operation, mean": "1.0",
    "its lines, without faults and PTX": "13",
}.items())  # fmt: skip
def test_a_figure_is_counted(figure: str, value: str, found: dict[str, tuple[str, str]]) -> None:
    assert found[figure][1] == value


def test_no_import_goes_round_and_few_names_are_one_word(
    found: dict[str, tuple[str, str]],
) -> None:
    assert found["circles of modules, of rooms"][0] == "0, 0"
    assert int(found["function names of one word"][0].partition("%")[0]) <= 40
