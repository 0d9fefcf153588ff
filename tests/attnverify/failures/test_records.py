"""
Records of failures: what their file says, and that one that cannot be read or written costs a line
and never a verdict.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnverify import ROOT
from attnverify.failures import record, store
from attnverify.failures.record import (
    FORMAT,
    FailureRecord,
    describe_damaged_records,
    load_records,
    read_record,
)
from attnverify.failures.store import save, write_atomically
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import case_of
from attnverify.machine import PATHS
from tests.support.run_attnverify import Run, judged, load_backends_here, verify
from tests.support.sample_backends import implementation

FOLDER = Path(".attnverify/failures")
RIGHT = "import numpy as np\nfrom attnverify import numpy_ref\n\n\ndef shift_right(x):\n    return "
EXAMPLES = sorted((ROOT / "examples" / "failures").glob("*.json"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load_backends_here(monkeypatch)


def shown(body: str = "numpy_ref.shift_right(x)") -> Run:
    Path("mine.py").write_text(f"{RIGHT}{body}\n")
    return judged("--backend", "mine.py", "--op", "shift_right")


def made(seed: int = 1) -> FailureRecord:
    recipe = Recipe("softmax", {"N": 2, "M": 3}, {"family": "normal", "seed": seed})
    return FailureRecord.of(implementation("softmax_zeros"), case_of(recipe, "float32"), "values")


@pytest.mark.parametrize("path", [None, "Haswell"])
def test_a_record_says_its_format_the_inputs_and_the_machine(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PATHS:
        monkeypatch.delenv(name, raising=False)
    if path:
        monkeypatch.setenv("OPENBLAS_CORETYPE", path)
    plain = json.loads(save(made(), "here", None).read_text())
    assert plain["format"] == FORMAT and len(plain["inputs"]) == 12
    said = {"processor", "arithmetic"} | ({"code path"} if path else set())
    assert set(plain["machine"]) == said and all(plain["machine"].values())


def test_the_checksum_is_of_the_inputs_and_of_nothing_else() -> None:
    assert made().inputs == made().inputs != made(seed=2).inputs


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_records_of_the_first_format_are_read(path: Path) -> None:
    assert read_record(path).hash == path.stem


def test_inputs_that_are_drawn_otherwise_are_told() -> None:
    path = save(made(), "here", None)
    plain = json.loads(path.read_text())
    assert read_record(path).describe_drift() == ""
    path.write_text(json.dumps(plain | {"inputs": "0" * 12}))
    assert "not those that were recorded (arithmetic " in read_record(path).describe_drift()
    told = verify("replay", path.stem, "--failures", "here", "--backend", "numpy_ref")
    assert told.status == 0 and "warning: the inputs drawn here are not" in told.output


DAMAGED = {
    "cut off": lambda text: text[:40],
    "no JSON": lambda text: "\0" * 20,
    "a list": lambda text: "[]",
    "of a later format": lambda text: text.replace(f'"format": {FORMAT}', '"format": 99'),
    "of another operation": lambda text: text.replace("shift_right", "shift_wrong"),
    "of another family": lambda text: text.replace('"family": "', '"family": "un'),
    "with a field too many": lambda text: text.replace('{"aspect"', '{"colour": 1, "aspect"'),
    "changed by hand": lambda text: text.replace('"seed": 0', '"seed": 12345'),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The name and the text of the record of a failure of shift_right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        assert shown("0 * x").status == 1
        path = min(path for path in FOLDER.glob("*.json") if '"family"' in path.read_text())
        return path.name, path.read_text()


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_record_costs_a_warning_and_no_verdict(
    recorded: tuple[str, str], damage: str
) -> None:
    FOLDER.mkdir(parents=True)
    (FOLDER / recorded[0]).write_text(DAMAGED[damage](recorded[1]))
    run = shown()
    assert run.status == 0 and set(run.verdicts().values()) == {"passed"}
    assert f"warning: {FOLDER / recorded[0]}: no record that can be read (" in run.output


def test_an_undamaged_one_costs_none(recorded: tuple[str, str]) -> None:
    FOLDER.mkdir(parents=True)
    (FOLDER / recorded[0]).write_text(recorded[1])
    assert "warning" not in shown().output


def test_a_damaged_record_is_forgotten_like_another() -> None:
    path = save(made(), str(FOLDER), None)
    path.write_text("{")
    assert verify("forget", path.stem).status == 0 and not path.exists()
    path.write_text("{")
    assert verify("replay", path.stem).status == 2


@pytest.mark.parametrize("body", ["0 * x", "numpy_ref.shift_right(x)"])
def test_where_nothing_can_be_written_the_verdicts_are_the_same(body: str) -> None:
    Path(".attnverify").write_text("a file where the folder should be")
    run = shown(body)
    there = run.verdicts()
    Path(".attnverify").unlink()
    here = shown(body)
    assert there == here.verdicts() and run.status == here.status
    assert ("not recorded: " in run.output) == (run.status == 1)


def test_a_record_is_never_seen_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("here.json")
    path.write_text("whole")

    def interrupted(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert [each.name for each in Path().iterdir()] == ["here.json"] and path.read_text() == "whole"


def test_of_too_many_records_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_RECORDS", 3)
    failures = [made(seed) for seed in range(5)]
    for second, failure in enumerate(failures):
        path = save(failure, "here", None)
        os.utime(path, (second, second))
        record.find_record(failures[0].hash, "here")  # which is in use as long as it is asked for
    kept = {failure.hash for failure in load_records("here")}
    assert kept == {failures[number].hash for number in (0, 3, 4)}


def test_many_processes_may_write_the_same_record() -> None:
    line = (
        "from pathlib import Path\nfrom attnverify.failures.store import write_atomically\n"
        "for _ in range(200): write_atomically(Path('same.json'), '{}' * 999)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    others = [subprocess.Popen([sys.executable, "-c", line], env=environment) for _ in range(2)]
    seen = set()
    while any(other.poll() is None for other in others):
        if Path("same.json").exists():
            seen.add(Path("same.json").read_text())
    assert [other.returncode for other in others] == [0, 0] and seen == {"{}" * 999}


def test_a_folder_of_damaged_records_alone_is_no_obstacle() -> None:
    Path("here").mkdir()
    Path("here/a.json").write_text("{")
    assert load_records("here") == [] and len(describe_damaged_records("here")) == 1


def test_a_record_that_the_specification_refuses_costs_a_line_and_no_verdict() -> None:
    recipe = Recipe("shift_right", {"N": 0, "M": 3}, {"family": "normal", "seed": 1})
    plain = {"operation": "shift_right", "dtype": "float32", "aspect": "values"}
    plain |= {"recipe": json.loads(recipe.text), "implementation": "it", "backend": "it.py"}
    FOLDER.mkdir(parents=True)
    (FOLDER / "older.json").write_text(json.dumps(plain))
    done = shown()
    assert done.status == 0
    assert "older.json: no record that can be read (ValueError: x: wanted shape" in done.output
