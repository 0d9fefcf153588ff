"""
The judge on the project's own kernels as a GPU would be given them. Where there is none, each run
of a column judges its kernels so too, under the name of the column and of what stands for the GPU;
all dtypes and GPUs are ``-m thorough``.
"""

import re
from itertools import product
from pathlib import Path

import pytest

from attnverify import session
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.machine import Machine
from attnverify.backends.source import parse_source
from attnverify.catalogue import CATALOGUE
from attnverify.device_assignment import MACHINE
from attnverify.failures.record import FailureRecord
from attnverify.failures.scripts.script import place_of
from attnverify.isolation.supervisor import runs_in_own_process
from attnverify.plugin.run import group_of
from attnverify.ptx.launchers import nvrtc
from attnverify.session import sources_on_machine
from attnverify.verdicts.cell import Cell, cells
from attnverify.verdicts.shown import is_sampled
from attnverify.verdicts.tally import Options
from tests.ptx.own_kernels.columns import HOW, judge_column
from tests.support.run_attnverify import in_a_process, report_in

OPERATIONS, WITHOUT_A_GRADIENT = 5, {"torch_impl": 2, "cupy_impl": 0}
"""With fused kernels and gradients, in each column; and those over caches, which have none."""


def column(source: str, sampled: bool = False) -> Backend:
    """A column with one operation, plain and by a kernel."""
    backend = Backend(parse_source(source).name, source, True, sampled=sampled)
    operation = CATALOGUE["alibi_attention"]
    backend.implementations = [
        Implementation(backend, operation, how, lambda: None) for how in ("", "triton")
    ]
    return backend


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv(MACHINE, "")


@pytest.mark.usefixtures("without_a_gpu")
def test_columns_with_kernels_are_judged_on_the_machine_too() -> None:
    ours, theirs = column("torch_impl"), column("mine.py")
    assert sources_on_machine([ours, theirs], (), "quick") == ["torch_impl@sm_90a"]
    on_both = ["torch_impl@sm_90a", "torch_impl@sm_80"]
    assert sources_on_machine([ours], ("alibi_attention",), "thorough") == on_both
    assert sources_on_machine([ours], ("softmax",), "thorough") == []
    assert sources_on_machine([column("torch_impl@sm_90a", sampled=True)], (), "quick") == []


@pytest.mark.usefixtures("without_a_gpu")
def test_a_gpu_takes_the_place_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "devices", lambda: ["0"])
    assert sources_on_machine([column("torch_impl")], (), "quick") == []


@pytest.mark.usefixtures("without_a_gpu")
def test_a_run_on_the_machine_alone_is_not_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MACHINE, "90")
    assert sources_on_machine([column("torch_impl")], (), "quick") == []


def test_a_compiler_that_is_not_installed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machine(90, "cupy").lacks() is None

    def fail() -> None:
        raise ImportError("NVRTC is not here")

    monkeypatch.setattr(nvrtc, "library", fail)
    assert Machine(90, "cupy").lacks() == "NVRTC is not here"
    assert Machine(90, "torch").lacks() is None


def test_a_column_on_the_machine_has_a_process_of_its_own() -> None:
    for which in ("paths", "all", "none"):
        assert runs_in_own_process("torch_impl@sm_90a", which)
    assert not runs_in_own_process("torch_impl", "paths")


def test_shorter_profiles_judge_what_the_kernels_compute() -> None:
    on_machine = column("torch_impl@sm_90a", sampled=True)
    short, whole = (cells([on_machine], dtypes=("float32",), thorough=x) for x in (False, True))
    assert {"refusals", "side effects"} == {c.aspect for c in whole} - {c.aspect for c in short}
    own = on_machine.implementations[0]
    assert [is_sampled(own, Options(x)) for x in ("quick", "default", "thorough")] == [1, 1, 0]


def test_a_program_of_a_failure_imports_the_column() -> None:
    own = column("torch_impl@sm_90a", sampled=True).implementations[0]
    failure = FailureRecord("softmax", "float32", "values", {}, own.name, own.backend.source)
    assert place_of(failure, own) == "torch_impl"
    assert failure.replay_line.endswith("--backend torch_impl@sm_90a")


def test_a_kernel_stays_with_one_worker() -> None:
    """pytest-xdist takes what is behind the last @ for the group: that mark is in none."""
    own = [
        Cell(i, None, "float32", "values")
        for i in column("torch_impl@sm_90a", True).implementations
    ]
    assert {group_of(cell) for cell in own} == {"alibi_attention-float32-torch_impl-sm_90a"}
    (other, _) = column("torch_impl").implementations
    assert group_of(Cell(other, None, "float32", "values")) == "alibi_attention-float32"


def test_a_verdict_names_what_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    narrow = ("--op", "alibi_attention", "--dtype", "bfloat16", "-k", "values and triton", "-v")
    line = ("run", "torch_impl", "--profile", "quick", "--report-json", "report.json", *narrow)
    done = in_a_process(*line)
    assert done.status == 0, done.output
    assert re.search("torch_impl@sm_90a: .* on PTX sm_90a, machine", done.output)
    assert "torch_impl@sm_90a:triton" in done.output
    tallies = {tally["backend"]: tally for tally in report_in("report.json")["tallies"]}
    assert {"torch_impl", "torch_impl@sm_90a"} == tallies.keys()
    found = tallies["torch_impl@sm_90a"]
    assert found["cases"] == found["strong"] == 1 < tallies["torch_impl"]["cases"]


@pytest.mark.parametrize("name", HOW)
def test_what_is_judged_on_the_machine_was_launched_there(name: str) -> None:
    """One kernel and its gradient; no interpreter and no host machine in their place."""
    told = judge_column(name, "--cases", "1", "--only", "scaled_dot_product_attention")
    assert len({line["kernel"] for line in told}) == 2
    assert {line["on"] for line in told} == {"PTX sm_90a, machine"}
    assert [line for line in told if "failed" in line or not line["launched"]] == []
    assert all(0 <= line["budget"] <= 1 for line in told) and any(line["budget"] for line in told)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "target"), list(product(HOW, ["80", "90"])))
def test_compiled_kernels_are_right_in_every_dtype(name: str, target: str) -> None:
    dtypes = "float32", "float16", "bfloat16"
    told = judge_column(name, "--target", target, "--cases", "12", "--dtypes", *dtypes)
    kernels = 2 * OPERATIONS + WITHOUT_A_GRADIENT[name]
    assert len({(line["kernel"], line["dtype"]) for line in told}) == 3 * kernels
    assert [line for line in told if "failed" in line or not line["launched"]] == []
