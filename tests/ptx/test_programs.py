"""Programs and suites of tests that were written for a GPU run unchanged; findings fail them."""

import re
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.__main__ import main
from attnverify.ptx.launchers import programs
from attnverify.ptx.launchers.nvrtc import compile_source
from attnverify.ptx.launchers.programs import Progress, logged
from tests.ptx.small import kernel

SUITE = Path(__file__).parent / "for_cuda" / "suite.py"
PROGRAM = """
import sys, torch, triton, triton.language as tl

@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) * 2, at < n + LEFT)

x = torch.ones(100, device="cuda")
double[(2,)](x, 100, BLOCK=64)
print(sys.argv[1], x.sum().item(), __name__)
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attnverify.ptx", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_suite_written_for_cuda_runs_unchanged(tmp_path: Path) -> None:
    shutil.copy(SUITE, tmp_path / "test_kernels.py")
    done = run("pytest", "test_kernels.py", "-q", "-p", "no:cacheprovider", folder=tmp_path)
    assert done.returncode == 1 and "1 failed, 19 passed" in done.stdout, done.stdout
    assert ">       wrong_kernel[(2,)](x, out, 100, BLOCK=64)" in done.stdout
    assert "Finding: out of bounds: 4 bytes at 400 of x, which has 400 bytes" in done.stdout
    assert "PTX machine: 13 launches of 7 kernels ran" in done.stdout
    assert "PTX machine: 1 stopped: out of bounds in wrong_kernel" in done.stdout


CHECKED = """
import attnverify as av, torch

def shift_right(x):
    padded = torch.cat([x, torch.zeros_like(x[..., :1])], -1)
    return padded.flatten(-2)[..., : -x.shape[-2]].reshape(x.shape).clone()

def test_shift():
    av.check(shift_right, "shift_right", profile="quick")
"""


def test_a_function_of_the_cpu_is_checked_in_a_suite(tmp_path: Path) -> None:
    """PyTorch was asked for the random numbers of a GPU that is not there."""
    (tmp_path / "test_mine.py").write_text(CHECKED)
    done = run("pytest", "test_mine.py", "-q", "-p", "no:cacheprovider", folder=tmp_path)
    assert done.returncode == 0, done.stdout


def test_options_of_pytest_may_stand_before_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Namespace] = []
    monkeypatch.setattr(programs, "execute", lambda given: seen.append(given) or 0)
    assert main(["pytest", "-q", "--target", "80", "-k", "add", "tests/", "-x"]) == 0
    assert seen[0].arguments == ["-q", "-k", "add", "tests/", "-x"] and seen[0].target == 80
    with pytest.raises(SystemExit):
        main(["run", "-q", "program.py"])


@pytest.mark.parametrize(("left", "status"), [("0", 0), ("1", 1)])
def test_a_program_runs_as_python_runs_it(tmp_path: Path, left: str, status: int) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("LEFT", left))
    done = run("run", "program.py", "word", folder=tmp_path)
    assert done.returncode == status, done.stderr
    if status:
        last = done.stderr.rstrip().splitlines()
        assert "Finding: out of bounds: 4 bytes at 400 of x" in done.stderr
        assert 'program.py", line 10' in done.stderr and "attnverify/ptx" not in done.stderr
        assert last[-1] == "PTX machine: 1 stopped: out of bounds in double"
    else:
        assert done.stdout == "word 200.0 __main__\n"
        assert "PTX machine: 1 launches of 1 kernels ran" in done.stderr


HEADERS = {
    "the library of C++": "#include <cuda/atomic>\n#include <cuda/std/type_traits>",
    "headers of the host": "#include <cassert>\n#include <stdio.h>\n#include <stdint.h>\n"
    "#include <cmath>\n#include <cuda_runtime.h>",
    "cooperative groups": "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>",
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_headers_of_packages_are_found(headers: str) -> None:
    x = np.zeros(1, np.int32)
    source = headers + '\nextern "C" __global__ void k(int *x) { x[0] = 7; }'
    compile_source(source, ("-std=c++17",))["k"].launch(1, 1, [x])
    assert x[0] == 7


def test_an_assertion_that_does_not_hold_is_a_finding() -> None:
    source = '#include <cassert>\nextern "C" __global__ void k(int *x) { assert(x[0] == 7); }'
    kernel = compile_source(source)["k"]
    kernel.launch(1, 1, [np.full(1, 7, np.int32)])
    with pytest.raises(ptx.Finding, match=r"trap.*kernel\.cu:2"):
        kernel.launch(1, 1, [np.zeros(1, np.int32)])


SLOW = kernel(".reg .b64 %r; mov.u64 %r, 0;\nTOP: add.u64 %r, %r, 1;\nbra TOP;", name="slow")


def test_a_large_launch_tells_before_it_is_made_what_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of = kernel(".reg .b32 %r;" + "mov.u32 %r, 1;" * 99)
    Progress().start(of, (100, 10), 1024)
    assert not capsys.readouterr().err
    Progress().start(of, (500, 100), (1000, 1, 1))
    assert capsys.readouterr().err == (
        "PTX machine: k: 50000 blocks of 1000 threads, 4 at a time: 12500 times 100 instructions, "
        "about 38 s and what its loops take\n"
    )


def test_a_launch_stops_when_its_time_is_over(tmp_path: Path) -> None:
    program = PROGRAM.replace("at = tl", "while tl.load(x) > 0: tl.atomic_add(x, 1.0)\n    at = tl")
    (tmp_path / "program.py").write_text(program.replace("LEFT", "0"))
    done = run("run", "--no-races", "--timeout", "0.5", "program.py", "word", folder=tmp_path)
    assert done.returncode == 1 and "PTX machine: 1 stopped: endless in double" in done.stderr
    assert "endless: still running when its time was over (" in done.stderr


def test_an_interruption_tells_where_blocks_stand() -> None:
    def interrupt(signal: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            SLOW.launch(3, 64, [])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    (told,) = raised.value.__notes__
    assert re.fullmatch(
        r"3 blocks of slow stand at:\n  kernel slow; PTX line \d+: .*: 192 threads", told
    )


def test_a_long_launch_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A clock that goes on by four seconds whenever it is looked at."""
    clock = iter(range(0, 999, 4))
    progress = Progress(clock=lambda: float(next(clock)))
    with logged():
        kernel(".reg .b32 %r; mov.u32 %r, 1;").launch(8, 1024, [], lanes=1024, tell=progress)
    assert capsys.readouterr().err.splitlines() == [
        f"PTX machine: k: {ended} of 8 blocks in {4 * ended} s, about {4 * (8 - ended)} s to go"
        for ended in (3, 6)
    ]
