"""
Our columns keep their bounds on every code path, and a recipe is the same inputs on each.

    pytest -m machines

A red one is what a user of that processor would see of a right kernel.
"""

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from attnverify import ROOT
from attnverify.machine import THREADS
from tests.machines import CODE_PATHS, MKL_PATHS, check
from tests.machines.check import RED_ONCE, checksums, implementations
from tests.machines.main_jobs import Job, describe, next_job, run_beside, run_missing

GOLDEN = json.loads(check.GOLDEN.read_text())


def found_under(environment: dict[str, str], *options: str) -> dict[str, Any]:
    """What the check finds in a process of that environment."""
    ours = {name: x for name, x in os.environ.items() if name not in THREADS}
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-m", "tests.machines.check", *options],
        env=ours | {"OMP_NUM_THREADS": "1"} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@lru_cache
def found_on(path: str) -> dict[str, Any]:
    return found_under(CODE_PATHS[path])


@pytest.mark.machines
@pytest.mark.parametrize("path", CODE_PATHS)
def test_our_columns_keep_their_bounds(path: str) -> None:
    found = found_on(path)
    assert found["red"] == [] and found["judged"] > 500


@pytest.mark.machines
@pytest.mark.parametrize("path", CODE_PATHS)
def test_a_recipe_is_the_same_inputs(path: str) -> None:
    assert found_on(path)["checksums"] == GOLDEN


@pytest.mark.machines
@pytest.mark.parametrize("path", [path for path in CODE_PATHS if "MKL_CBWR" in CODE_PATHS[path]])
def test_the_code_path_was_taken(path: str) -> None:
    told = found_on(path)["machine"]
    for name, value in CODE_PATHS[path].items():
        if name != "OMP_NUM_THREADS":
            assert f"{name}={value}" in told["code path"]


@pytest.mark.machines
@pytest.mark.parametrize("path", MKL_PATHS)
def test_sums_that_begin_with_a_bias_keep_their_bound_under_every_path_of_mkl(path: str) -> None:
    found = found_under({"MKL_CBWR": path}, "--operation", "learned_relative_score")
    assert found["red"] == [] and found["judged"] >= 15


# what the above relies on, in every run


def test_what_was_red_on_amd_is_among_the_cases() -> None:
    first = RED_ONCE[0]["recipe"]
    assert first["sizes"] == {"B": 1, "D": 16, "H": 5, "M": 1, "N": 11, "P": 11}
    assert first["values"] == {"family": "small", "seed": 44}
    assert first["operation"] == "learned_relative_score"


def test_numpy_is_told_of_features_by_the_names_that_it_knows() -> None:
    """It warns of others, and leaves them on."""
    told = "import numpy; from numpy._core._multiarray_umath import __cpu_features__ as has; "
    for path in ("oldest", "AVX2"):
        given = CODE_PATHS[path] | {"PATH": os.environ["PATH"]}
        names = given["NPY_DISABLE_CPU_FEATURES"].split()
        code = f"{told}print([name for name in {names} if has.get(name)])"
        line = [sys.executable, "-W", "error::ImportWarning", "-c", code]
        done = subprocess.run(line, env=given, capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_each_column_is_judged_without_its_emulated_kernels() -> None:
    found = list(implementations({"scaled_dot_product_attention"}))
    assert {each.backend.name for each in found} == {"numpy_ref", "torch_impl", "cupy_impl"}
    assert not [each.name for each in found if "triton" in each.name or "cuda" in each.name]


def test_the_inputs_are_those_of_every_other_machine() -> None:
    assert checksums() == GOLDEN


def test_the_main_jobs_go_on_where_their_file_ends(tmp_path: Path) -> None:
    file, asked = tmp_path / "jobs.json", list[str]()

    def run(path: str, seed: int, options: tuple[str, ...]) -> Job:
        asked.append(path)
        return Job(path, seed, int(seed == 3), "1 passed", 1.0, {}, list(options))

    assert run_missing(file, 2, run, lambda: 5) == 0
    assert run_missing(file, 4, run, lambda: 3) == 1  # a red job is the exit status
    assert asked == list(CODE_PATHS)[:4]
    assert next_job([]) == "as it is" and len(json.loads(file.read_text())) == 4
    assert describe(json.loads(file.read_text())[3]).startswith("AVX seed 3: red")


def test_emulated_kernels_are_run_beside_the_jobs_that_left_them_out(tmp_path: Path) -> None:
    others, file, asked = tmp_path / "jobs.json", tmp_path / "emulated.json", list[Job]()

    def run(path: str, seed: int, options: tuple[str, ...]) -> Job:
        asked.append(Job(path, seed, int(seed == 2), "1 passed", 1.0, {}, list(options)))
        return asked[-1]

    seeds = iter((1, 2, 3))
    run_missing(others, 3, run, lambda: next(seeds), ("-k", "not triton and not cuda"))
    left_out, asked[:] = [(job.path, job.seed) for job in asked], []
    assert run_beside(file, 1, others, run) == 0
    assert run_beside(file, 2, others, run) == run_beside(file, 2, others, run) == 1
    assert [(job.path, job.seed) for job in asked] == left_out[:2]
    assert {tuple(job.options) for job in asked} == {("-k", "triton or cuda")}
