"""ARCHITECTURE.md says what is there: its levels are those held, its walk is that of a run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnverify import PACKAGE, ROOT
from tests.spec.test_levels import LEVELS
from tests.support.first_calls import read_first_calls, write_sitecustomize

TEXT = (ROOT / "ARCHITECTURE.md").read_text()
CALL = tuple[str, str]
STEP = re.compile(r"^\d+\. `(\S+)\.py`: `(\w+)`", re.MULTILINE)
WALK: list[CALL] = [(path.replace("/", "."), function) for path, function in STEP.findall(TEXT)]
RIGHT, WRONG = "2 ** (-8 / n * (h + 1 if h < n else h - n + 0.5))", "2 ** (-8 * (h + 1) / H)"


def levels_in_words(text: str) -> dict[int, tuple[str, ...]]:
    """The table of levels, by number."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)
    return {int(number): tuple(re.findall(r"`(\w+)`", rooms)) for number, rooms in rows}


def test_the_table_of_levels_is_the_one_that_is_held() -> None:
    assert levels_in_words(TEXT) == dict(enumerate(LEVELS))


def test_the_walk_is_short_and_its_modules_exist() -> None:
    files = [PACKAGE / f"{module.replace('.', '/')}.py" for module, _ in WALK]
    assert 10 <= len(files) <= 15 and [file for file in files if not file.is_file()] == []


def out_of_order(walk: list[CALL], calls: list[CALL]) -> list[CALL]:
    """The steps that were never called, or not after the step before them."""
    times = [calls.index(step) if step in calls else -1 for step in walk]
    return [
        step for step, before, at in zip(walk, [-1, *times], times, strict=False) if at <= before
    ]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[CALL]:
    """What a run on a kernel with wrong slopes calls, in both of its processes."""
    folder = tmp_path_factory.mktemp("walk")
    kernel = (ROOT / "examples" / "my_kernel.py").read_text()
    (folder / "my_kernel.py").write_text(kernel.replace(RIGHT, WRONG))
    write_sitecustomize(folder, folder / "calls.txt")
    line = "run -v my_kernel.py --op alibi_attention --dtype float32 --profile quick -k test_values"
    path = os.pathsep.join((str(folder), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "attnverify", *line.split()],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cause: equals" in done.stdout and "plain geometric series" in done.stdout, done.stdout
    return read_first_calls(Path(folder / "calls.txt"))


def test_the_walk_is_the_order_of_the_calls(calls: list[CALL]) -> None:
    assert out_of_order(WALK, calls) == []


# sabotage: what these tests must notice


def test_a_walk_that_leaves_the_way_is_noticed(calls: list[CALL]) -> None:
    swapped = [*WALK[:8], WALK[9], WALK[8], *WALK[10:]]
    invented = [*WALK, ("report.table", "no_such_function")]
    assert out_of_order(swapped, calls) == [WALK[8]]
    assert out_of_order(invented, calls) == [invented[-1]]


def test_a_room_on_another_level_is_noticed() -> None:
    assert levels_in_words(TEXT.replace("| 5 | `conventions`", "| 5 | `judge`"))[5] == ("judge",)
