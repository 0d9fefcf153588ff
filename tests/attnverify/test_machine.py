"""What is told of the machine, and how its processors are shared out."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from attnverify import ROOT, machine
from attnverify.machine import THREADS, describe_machine, share_out_processors


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "count_processors", lambda: 4)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("processes", "threads"), [(1, "4"), (2, "2"), (3, "1"), (4, "1"), (9, "1")]
)
def test_each_process_gets_its_part_and_at_least_one(
    processes: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    share_out_processors(processes)
    assert os.environ["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize("name", THREADS)
def test_a_number_that_the_user_has_set_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    share_out_processors(2)
    assert {one: os.environ.get(one) for one in THREADS} == dict.fromkeys(THREADS) | {name: "3"}


def told_by(environment: Mapping[str, str]) -> dict[str, str]:
    """What a process of that environment tells of the machine."""
    code = (
        "import json, torch; from attnverify.machine import describe_machine as tell; "
        "print(json.dumps(tell()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    told: dict[str, str] = json.loads(done.stdout)
    return told


def test_processor_blas_code_path_and_threads_are_told() -> None:
    told = told_by(
        {
            "OMP_NUM_THREADS": "2",
            "OPENBLAS_CORETYPE": "Haswell",
            "ATEN_CPU_CAPABILITY": "default",
        }
    )
    assert told["processor"].endswith("cores")
    assert "Haswell, " in told["arithmetic"] and "DEFAULT, " in told["arithmetic"]
    assert "2 threads" in told["arithmetic"]
    assert told["code path"] == "OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=default"


def test_no_code_path_is_told_where_none_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in machine.PATHS:
        monkeypatch.delenv(name, raising=False)
    assert describe_machine().keys() == {"processor", "arithmetic"}


SUITE = """
import os

import pytest
from attnverify.differential import *


def test_threads(request):
    assert os.environ["OMP_NUM_THREADS"] == os.environ["WANTED"]
"""


@pytest.mark.parametrize(("given", "wanted"), [({}, "1"), ({"OMP_NUM_THREADS": "7"}, "7")])
def test_workers_of_xdist_begin_with_their_threads(
    given: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    (tmp_path / "test_theirs.py").write_text(SUITE)
    workers = str(max(2, len(os.sched_getaffinity(0))))
    chosen = "--attn-backend=attnverify.numpy_ref", "--attn-op=causal_mask", "-k", "threads"
    line = ["-m", "pytest", "-p", "attnverify.plugin", "-p", "no:cacheprovider", "-q", "-n"]
    done = subprocess.run(
        [sys.executable, *line, workers, *chosen],
        env=os.environ | {"PYTHONPATH": str(ROOT), "WANTED": wanted} | given,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_without_the_library_of_thread_pools_the_build_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    (told,) = machine.describe_blas()
    assert len(told.split()) == 2
