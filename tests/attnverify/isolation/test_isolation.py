"""
Isolation: whatever one backend does, it costs its own verdict, and everybody else is judged as
ever.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.isolation import readings
from attnverify.isolation.readings import Moment, read_moment, seconds_since
from attnverify.isolation.status_board import StatusBoard
from attnverify.isolation.supervisor import describe_backend, runs_in_own_process
from attnverify.isolation.worker_process import Limits, Worker, WorkerDied
from attnverify.judge.errors import DeviceLost, Disagreement
from attnverify.judge.invoke import call
from tests.attnverify.isolation.misbehaving import HERE, LINES, path_of
from tests.support.run_attnverify import Run, in_a_process, judged, verify
from tests.support.sample_backends import HERE as SAMPLES

pytestmark = pytest.mark.xdist_group("isolation")
"""One worker runs all of them: the runs that several tests look at are made once."""

SLOW = "hangs_at_import"
"""Judged apart: an import may take ten times as long as a case."""
LINE = (
    "--op",
    "shift_right",
    "--op",
    "scaled_dot_product_attention",
    "--dtype",
    "float32",
    "--profile",
    "quick",
)
LIMITS = ("--case-seconds", "3", "--memory", "400")

REFUSAL = "x of integers"
SEGFAULT = (
    "crashed: signal 11 (SIGSEGV) on shift_right: layout kind=contiguous seed=0, sizes M=33 N=2"
)
ABORT = "crashed: signal 6 (SIGABRT) on shift_right: layout kind=contiguous seed=0, sizes M=65 N=2"
SEGFAULT_AMONG_DRAWS = (
    "crashed: signal 11 (SIGSEGV) on shift_right: layout kind=mixed seed=25462, options lead=[2], "
    "sizes M=33 N=3"
)
ABORT_IN_A_LAYOUT = ABORT.replace(
    "contiguous seed=0, sizes M=65 N=2", "transposed seed=1, sizes M=65 N=3"
)
LOST = (
    "left its device unusable: RuntimeError: CUDA error: an illegal memory access was "
    "encountered on shift_right:"
)
GRADIENT = "crashed: signal 11 (SIGSEGV) on scaled_dot_product_attention_grad:"
SHAPE = "raised outside of the call: OSError: no shape today on shift_right:"

WORDS: dict[str, dict[str, str]] = {
    "good": {},
    "fills_later": {},
    "draws": {},
    "deletes_itself": {},
    "patches_at_import": {},
    "segfault": {"values": SEGFAULT, "side effects": SEGFAULT_AMONG_DRAWS},
    "aborts": {"values": ABORT, "side effects": ABORT_IN_A_LAYOUT},
    "sticky": {"values": LOST, "side effects": LOST},
    "gradient_segfault": dict.fromkeys(
        ("gradients", "side effects", "hidden NaN", "isolation"), GRADIENT
    ),
    "evil_shape": {"values": SHAPE, "side effects": SHAPE},
    "exits": {"refusals": f"exited with status 3 on {REFUSAL}"},
    "loops": {"refusals": f"did not answer in 3 s on {REFUSAL}"},
    "ignores_sigterm": {"refusals": f"did not answer in 3 s on {REFUSAL}"},
    "stops": {"refusals": f"did not answer in 3 s on {REFUSAL}"},
    "eats_memory": {"refusals": "out of memory: it took"},
    "floods": {"refusals": f"flooded: more than 100 MB of output on {REFUSAL}"},
    "closes_everything": {"refusals": f"({REFUSAL})"},
    "kills_its_group": {"refusals": f"crashed: signal 15 (SIGTERM) on {REFUSAL}"},
    "kills_itself": {
        "refusals": "killed: signal 9 (SIGKILL), as by a machine that is out of memory"
    },
    "threads": {"side effects": "changes the running threads (<Thread(Thread-"},
    "children": {"side effects": "changes the child processes ("},
    # what goes on twice, then four times, may fill the memory before it is counted
    "forks": {"side effects": "changes the child processes (|out of memory: it took"},
    "closes_stdout": {"side effects": "changes the standard streams (stdout: "},
    "closes_sys_stdout": {"side effects": "changes Python's standard streams (stdout)"},
    "changes_directory": {"side effects": "changes the working directory ("},
    "changes_environment": {"side effects": "changes the environment (OMP_NUM_THREADS)"},
    "changes_error_state": {"side effects": "changes NumPy's error state (divide: warn -> ignore)"},
    "changes_print_options": {"side effects": "changes NumPy's print options (precision: 8 -> 2)"},
    "seeds": {"side effects": "seeds NumPy's random numbers; seeds Python's random numbers"},
    "default_dtype": {
        "side effects": "changes torch's default dtype (torch.float32 -> torch.float64)"
    },
    "flushes": {"side effects": "changes subnormal numbers (kept -> flushed to 0)"},
    "grad_mode": {"side effects": "changes torch's grad mode (True -> False)"},
    "patches_numpy": {"side effects": "changes functions of others (numpy.exp)"},
    "replaces_module": {"side effects": "changes sys.modules (numpy)"},
    "sys_path": {"side effects": "changes sys.path"},
    "handlers": {"side effects": "changes the signal handlers (SIGTERM)"},
    "filters": {"side effects": "changes the warnings filters"},
    "recursion_limit": {"side effects": "changes the recursion limit (1000 -> 123456)"},
    "at_exit": {"side effects": "changes the functions that run at exit ("},
    "talks": {"values": "elements differ from the specification"},
    "fiftieth": {  # the process that is started anew makes fifty calls too
        "values": "did not answer in 3 s on ",
        "side effects": "did not answer in 3 s on ",
    },
    "sys_exit": {"values": "raised SystemExit: 0", "refusals": "raised SystemExit: 0"},
    "interrupts": {"values": "raised KeyboardInterrupt", "refusals": "raised KeyboardInterrupt"},
    "generator_exit": {"values": "raised GeneratorExit", "refusals": "raised GeneratorExit"},
    "memory_error": {
        "values": "raised MemoryError: not a byte left",
        "refusals": "raised MemoryError",
    },
    "recursion": {"values": "raised RecursionError", "refusals": "raised RecursionError"},
    "asks": {"values": "raised EOFError", "refusals": "raised EOFError"},
    "evil_equality": {"values": "wanted ndarray of shape (1, 1), got Evil", "refusals": "accepted"},
    "endless": {"values": "wanted ndarray of shape (1, 1), got generator", "refusals": "accepted"},
}
"""
What each backend is told in which column; in the others it fails at nothing but its own outputs,
see ALSO.
"""

ALSO = {
    "sys_exit": "side effects",
    "interrupts": "side effects",
    "generator_exit": "side effects",
    "memory_error": "side effects",
    "recursion": "side effects",
    "asks": "side effects",
    "evil_equality": "side effects",
    "endless": "side effects",
    "talks": "side effects",
    "forks": "values",
}
"""
Where else a backend may fail: calls that give no right output may be told as side effects too, and
processes that go on twice may fill the memory at a value.
"""

BROKEN = {
    "crashes_at_import": "cannot be imported: crashed: signal 11 (SIGSEGV)",
    "exits_at_import": "cannot be imported: exited with status 0",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


EACH_COMMIT = {
    *("good", "segfault", "sticky", "gradient_segfault", "evil_shape", "exits", "loops"),
    *("eats_memory", "floods", "kills_itself", "threads", "forks", "closes_stdout"),
    *("changes_error_state", "patches_numpy", "patches_at_import", "sys_exit", "evil_equality"),
    "talks",
    "exits_at_import",
}
"""One of each way out of a call, of each limit, and of each thing that is looked after."""

WORKERS = {"some": "2", "all": "2", "all in one process": ""}
"""Which backends one run has, and by how many workers."""


def names_in(run: str) -> list[str]:
    return [name for name in (*WORDS, *BROKEN) if name in EACH_COMMIT or run != "some"]


def in_every_run(names: Iterable[str]) -> list[Any]:
    """Each of these with every run that has it; what is not of each commit is marked thorough."""
    return [
        pytest.param(run, name, marks=() if run == "some" else pytest.mark.thorough)
        for run in WORKERS
        for name in names
        if name in names_in(run)
    ]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(run, marks=() if run == "some" else pytest.mark.thorough) for run in WORKERS
    ],
)
def everyone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of all of them."""
    sources = [
        option for name in names_in(request.param) for option in ("--backend", path_of(name))
    ]
    number = WORKERS[request.param]
    workers = ("-n", number, "--dist", "loadgroup") if number else ()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        done = in_a_process(
            "run", "-v", *sources, *LINE, *LIMITS, *workers, "--report-json", "report.json"
        )
        Path("output.txt").write_text(done.output)
        return replace(done, report=json.loads(Path("report.json").read_text()))


def tallies_of(run: Run, name: str) -> dict[str, dict[str, Any]]:
    return {
        tally["aspect"]: tally
        for tally in (run.report or {})["tallies"]
        if tally["backend"] == name
    }


# Everybody at once


def test_every_file_is_expected_to_do_something() -> None:
    assert {*(path.stem for path in HERE.glob("*.py")), *LINES} == {*WORDS, *BROKEN, SLOW}
    assert len(WORDS) + len(BROKEN) - sum(not words for words in WORDS.values()) >= 25


def test_the_run_ends_and_says_that_something_failed(everyone: Run) -> None:
    assert everyone.status == 1 and "INTERNALERROR" not in everyone.output
    judged_ones = {tally["backend"] for tally in (everyone.report or {})["tallies"]}
    assert {*WORDS} >= judged_ones >= {*WORDS} & EACH_COMMIT


def says(reason: str, words: str) -> bool:
    """Tell whether a reason holds the words, or one of those between bars."""
    return any(each in reason for each in words.split("|"))


@pytest.mark.parametrize(("everyone", "name"), in_every_run(WORDS), indirect=["everyone"])
def test_each_costs_its_own_verdict(everyone: Run, name: str) -> None:
    tallies = tallies_of(everyone, name)
    failed = {aspect for aspect, tally in tallies.items() if tally["verdict"] == "failed"}
    assert failed - {ALSO.get(name)} == set(WORDS[name])
    told = {aspect: tallies[aspect]["reason"] for aspect in WORDS[name]}
    assert {
        aspect: told[aspect]
        for aspect, words in WORDS[name].items()
        if not says(told[aspect], words)
    } == {}
    assert {"values", "refusals", "side effects"} <= set(tallies)


@pytest.mark.parametrize(("everyone", "name"), in_every_run(BROKEN), indirect=["everyone"])
def test_what_dies_in_its_import_is_broken_in_one_line(everyone: Run, name: str) -> None:
    assert f"{path_of(name)}: broken ({BROKEN[name]})" in everyone.output


def test_a_good_neighbour_is_judged_as_ever(everyone: Run) -> None:
    line = ("--backend", path_of("good"), "--op", "shift_right", "--isolate", "none")
    alone = judged(*line)
    counts = ("verdict", "cases", "strong", "checks", "unsupported", "budget")
    seen = {
        aspect: [tally[count] for count in counts]
        for aspect, tally in tallies_of(everyone, "good").items()
    }
    least = {
        aspect: [tally[count] for count in counts]
        for aspect, tally in tallies_of(alone, "good").items()
    }
    assert alone.status == 0 and {
        aspect: counted[0] for aspect, counted in seen.items()
    } == dict.fromkeys(least, "passed")
    assert all(
        seen[aspect][1] >= least[aspect][1] for aspect in least
    )  # the recorded failures of the others come on top


def test_a_change_at_import_is_a_note_and_numpy_is_put_back(everyone: Run) -> None:
    assert "note: its import changes functions of others (numpy.where)" in everyone.output


def test_what_a_backend_prints_is_shown_beside_its_failure_and_nowhere_else(everyone: Run) -> None:
    assert "about to shift" in everyone.output and len(everyone.output) < 1_000_000


# Beside others


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Four processes that do nothing but take the processors."""
    line = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(line) for _ in range(4)]
    yield
    for other in others:
        other.kill()
        other.wait()


FIVE = ("good", "fills_later", "threads", "loops", "eats_memory")


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize(
    "names", [("good", "loops"), pytest.param(FIVE, marks=pytest.mark.thorough)], ids=len
)
def test_no_verdict_hangs_on_the_machines_load(names: tuple[str, ...]) -> None:
    sources = [option for name in names for option in ("--backend", path_of(name))]
    done = judged(*sources, "--op", "shift_right", *LIMITS)
    for name in names:
        reasons = {
            aspect: tally["reason"]
            for aspect, tally in tallies_of(done, name).items()
            if tally["verdict"] == "failed"
        }
        assert reasons.keys() == WORDS[name].keys(), name
        assert all(says(reasons[aspect], words) for aspect, words in WORDS[name].items())


def test_waiting_for_a_processor_is_not_counted_as_silence() -> None:
    """That of the thread which waited longest: the process may have waited for its answer."""
    then, now = Moment(5.0, {"1": 2.0, "2": 1.0}), Moment(105.0, {"1": 12.0, "2": 61.0, "3": 30.0})
    assert seconds_since(then, now) == 40
    assert seconds_since(Moment(5.0, {}), Moment(105.0, {})) == 100


def test_a_process_that_ends_while_its_threads_are_listed_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended a cell with a FileNotFoundError of ours."""

    def gone(place: str) -> None:
        raise FileNotFoundError(place)

    assert readings.threads_of(os.getpid())
    monkeypatch.setattr(os, "listdir", gone)
    monkeypatch.setattr(os, "scandir", gone)
    assert read_moment(os.getpid()).waits == {}


@pytest.mark.usefixtures("busy_machine")
def test_a_child_that_waits_for_a_processor_is_seen_to_wait() -> None:
    line = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = subprocess.Popen([sys.executable, "-c", line], start_new_session=True)
    then = read_moment(parent.pid)
    time.sleep(2)
    now = read_moment(parent.pid)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    assert len(now.waits) > len(then.waits) and seconds_since(then, now) < now.time - then.time


def memory_of(total: int, free: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A machine with so much memory, and so much of it free, in GB."""
    file = folder / "meminfo"
    file.write_text(f"MemTotal: {total << 20} kB\nMemAvailable: {free << 20} kB\n")
    monkeypatch.setattr(readings, "MEMORY", file)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)


def test_what_others_hold_is_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for free in (63, 8, 2):
        memory_of(64, free, monkeypatch, tmp_path)
        assert Limits().exceeded(5000) == ""
        assert Limits().exceeded(50000) == "out of memory: it took 50000 MB, 49152 are allowed"
    assert Limits(memory=400).exceeded(500) == "out of memory: it took 500 MB, 400 are allowed"


def test_a_machine_whose_memory_runs_out_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory_of(64, 1, monkeypatch, tmp_path)
    told = "out of memory: it took 5000 MB, and the machine has 1024 MB left"
    assert Limits().exceeded(5000) == told
    assert Limits().exceeded(500) == Limits(memory=6000).exceeded(5000) == ""


# One at a time


def alone(name: str, *options: str) -> Run:
    return judged(
        "--backend", path_of(name), "--op", "shift_right", "--case-seconds", "2", *options
    )


def without_machine(report: Any) -> Any:
    """A report but for the libraries that a process has loaded: a worker loads fewer."""
    if isinstance(report, dict):
        return {key: without_machine(x) for key, x in report.items() if key != "arithmetic"}
    return [without_machine(x) for x in report] if isinstance(report, list) else report


@pytest.mark.parametrize(("then", "told"), [(300.0, ""), (900.0, "out of memory: it took 700 MB")])
def test_a_child_that_was_forked_a_moment_ago_is_not_counted_twice(
    then: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right worker was ended at twice what it held, once in many runs."""
    seen = iter((900.0, then))
    monkeypatch.setattr(Worker, "memory", lambda _: next(seen))
    worker = Worker.__new__(Worker)
    worker.limits, worker.held = Limits(memory=400), 200.0
    assert worker.excess().partition(",")[0] == told


@pytest.mark.parametrize("backend", ["mixed_verdicts", "nondeterministic"])
def test_isolated_or_not_the_tallies_are_the_same(backend: str) -> None:
    """Of calls of the sizes that models make, too: test_a_backend_by_name_may_be_isolated."""
    line = ("--backend", str(SAMPLES / f"{backend}.py"), "--failures")
    one, two = (
        judged(*line, "here", "--isolate", "none"),
        judged(*line, "there", "--isolate", "paths"),
    )
    assert without_machine(one.report) == without_machine(two.report)
    assert one.status == two.status


@pytest.mark.parametrize(("name", "status"), [("segfault", 1), ("loops", 1), ("sticky", 1)])
def test_a_death_is_recorded_and_seen_again(name: str, status: int) -> None:
    assert alone(name).status == 1
    record = next(Path(".attnverify/failures").glob("*.json"))
    done = verify("replay", record.stem, "--case-seconds", "1")
    assert done.status == status and any(
        words in done.output for words in ("SIGSEGV", "did not answer in 1 s", "device unusable")
    )
    assert verify("replay", record.stem, "--backend", path_of("good")).status == 0


def sleepers() -> set[str]:
    """
    The processes that a run in this test's folder of children.py left behind;
    `everyone` may run beside it.
    """
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                process.joinpath("cmdline").read_bytes() == b"sleep\x0098765\x00"
                and process.joinpath("cwd").resolve() == Path.cwd()
            ):
                found.add(process.name)
    return found


def test_nothing_that_a_backend_started_outlives_the_run() -> None:
    assert alone("children").status == 1
    until = time.monotonic() + 5  # the killed die in their own time
    while sleepers() and time.monotonic() < until:
        time.sleep(0.05)
    assert not sleepers()


def test_a_file_cannot_tell_that_it_is_called_under_pytest(tmp_path: Path) -> None:
    """Some choose another configuration there: Triton's tutorial on fused attention does."""
    file = tmp_path / "told.py"
    file.write_text(
        "import os\nassert 'PYTEST_VERSION' not in os.environ\n"
        "assert 'PYTEST_CURRENT_TEST' not in os.environ\n"
        "def shift_right(x):\n    raise NotImplementedError\n"
    )
    worker = Worker(str(file), Limits(10.0))
    try:
        assert not worker.ready()["broken"]
    finally:
        worker.close()


def test_an_import_that_hangs_is_broken() -> None:
    done = judged("--backend", path_of(SLOW), "--case-seconds", "0.2")
    assert done.status == 2 and "broken (cannot be imported: did not answer in 2 s)" in done.output


def test_a_call_that_takes_too_long_is_told_by_its_size_and_what_gives_it_longer() -> None:
    """The file may be right and slow, so that nothing calls it wrong."""
    Path("mine.py").write_text(
        "import time\n\ndef shift_right(x):\n    time.sleep(30 * (x.shape[-1] > 4))\n"
        "    raise NotImplementedError\n"
    )
    line = ("run", "mine.py", "--dtype", "float32", "--case-seconds", "0.5", "-k", "values")
    done = verify(*line)
    told = r"did not answer in 0.5 s \(M=\d+ N=\d+\); it is slow, or stuck"
    assert re.search(rf"(?m)^mine.py: no verdict in float32: {told}$", done.output)
    assert re.search(r"(?m)^1\. did not answer in 0.5 s: M=\d+ N=\d+: it is slow", done.output)
    assert "--case-seconds 2.5 gives it longer" in " ".join(done.output.split())
    assert done.status == 1 and "wrong" not in done.output


def known(line: str, name: str = "segfault") -> Run:
    Path("known.txt").write_text(
        f"shift_right  *  {line}\nshift_right  *  side effects : it crashes\n"
    )
    return alone(name, "--known-failures", "known.txt")


def test_a_death_may_be_known() -> None:
    done = known("values : it crashes")
    assert done.status == 0 and set(done.verdicts().values()) == {"known failure", "passed"}


def test_a_death_may_be_known_in_a_region_and_the_rest_is_judged() -> None:
    done = known("values when M == 33 : it crashes")
    tally = tallies_of(done, "segfault")["values"]
    assert done.status == 0 and tally["verdict"] == "known failure"
    assert tally["known"] >= 1 and tally["cases"] >= 20


def test_a_death_outside_of_the_known_region_is_told() -> None:
    assert (
        SEGFAULT
        in tallies_of(known("values when M == 34 : it crashes"), "segfault")["values"]["reason"]
    )


def test_without_isolation_an_exit_is_a_failure_still() -> None:
    done = alone("sys_exit", "--isolate", "none")
    assert done.status == 1 and "raised SystemExit: 0" in done.output


def test_who_is_isolated() -> None:
    paths = [
        source
        for source in ("numpy_ref", "torch_impl", "some.module", path_of("good"), str(HERE))
        if runs_in_own_process(source, "paths")
    ]
    assert paths == [path_of("good"), str(HERE)]
    assert runs_in_own_process("numpy_ref", "all") and not runs_in_own_process(
        path_of("good"), "none"
    )


@pytest.mark.usefixtures("real_calls_are_judged")
def test_a_backend_by_name_may_be_isolated() -> None:
    line = ("--backend", "numpy_ref", "--op", "shift_right", "--isolate")
    assert judged(*line, "all").report == judged(*line, "none").report


# The parts


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker(path_of("exits"), Limits(10.0))
    yield found
    found.close()


def request(aspect: str) -> dict[str, Any]:
    options = {"profile": "quick", "seed": 0, "failures": "none"}
    own = {"implementation": "shift_right", "dtype": "float32", "aspect": aspect}
    return {"do": "judge", "options": options, "known": [], "fatal": []} | own


def test_a_worker_that_died_is_replaced(worker: Worker) -> None:
    described = describe_backend(worker)
    assert described.implementations[0].name == "shift_right"
    assert described.declared.features == {"dropout": False, "align": ["end"]}
    first = worker.process
    with pytest.raises(WorkerDied, match="exited with status 3 on x of integers"):
        worker.ask(request("refusals"))
    assert worker.ask(request("values"))["tally"]["verdict"] == "passed"
    assert worker.process is not first and first is not None and first.poll() is not None


def test_an_implementation_of_an_isolated_backend_is_not_called_here(worker: Worker) -> None:
    with pytest.raises(RuntimeError, match="lives in another process"):
        describe_backend(worker).implementations[0].function()


def test_the_board_outlives_its_writer(tmp_path: Path) -> None:
    with (tmp_path / "board").open("w+b") as file:
        file.truncate(1 << 16)
        writer, reader = StatusBoard(file.fileno()), StatusBoard(file.fileno())
        assert (reader.read() or writer).count == 0
        writer.write({"during": "a test"}, 2.0)
        mark = reader.read()
    assert mark is not None and (mark.count, mark.factor, mark.case) == (
        1,
        2.0,
        {"during": "a test"},
    )


def implementation(name: str, raises: BaseException) -> tuple[Backend, Implementation]:
    backend = load(path_of(name))

    def function(**_: Any) -> Any:
        raise raises

    return backend, replace(backend.implementations[0], function=function)


def test_an_interrupt_at_the_terminal_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    _, interrupted = implementation("good", KeyboardInterrupt())
    monkeypatch.setattr(
        signal, "getsignal", lambda _: signal.default_int_handler
    )  # a shell's background job ignores SIGINT
    with pytest.raises(KeyboardInterrupt):
        call(interrupted, {})
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    with pytest.raises(Disagreement, match="raised KeyboardInterrupt"):
        call(interrupted, {})


def test_a_device_that_answers_no_more_is_told_from_an_error() -> None:
    backend, failing = implementation(
        "good", RuntimeError("CUDA error: an illegal memory access was encountered")
    )
    with pytest.raises(Disagreement, match="raised RuntimeError"):
        call(failing, {})
    assert backend.library is not None

    def lost() -> None:
        raise RuntimeError("CUDA error")

    backend.library = replace(backend.library, synchronize=lost)
    with pytest.raises(DeviceLost, match="left its device unusable"):
        call(failing, {})
