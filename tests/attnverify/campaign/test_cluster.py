"""
Campaigns on a scheduler that runs already, whose workers share no folder with this process: files
are sent, versions compared; a worker and the scheduler are killed, and every case is counted once.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from attnverify.campaign import cluster
from attnverify.campaign.cluster import (
    Sent,
    Unreachable,
    archive_of,
    as_here,
    as_there,
    compare_versions,
    describe_differences,
    folder_of,
)
from attnverify.campaign.engine import meet_newcomers, prepare
from attnverify.campaign.state import Campaign
from attnverify.campaign.work_units import WorkUnit, generate_work_units, place, run_work_unit
from attnverify.cli import judging
from attnverify.isolation.worker_process import Limits
from attnverify.verdicts.journal import describe_versions
from tests.support.network_namespaces import Network, hidden, network
from tests.support.run_attnverify import ROOT, verify

ENGINE = pytest.mark.filterwarnings("ignore")  # the engine's own, in its threads
UNITS = 12
LINE = ("--dtype", "float32", "--seed", "0")

MINE = """\
import numpy as np

from helper import pad

PRECISION = "wide"


def shift_right(x):
    flat = pad(x).reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]]
    return flat.reshape(x.shape).copy()


def causal_mask(N, M):
    return np.arange(M) <= np.arange(N)[:, None]
"""
"""A right shift, and a causal mask that is aligned at the start."""

HELPER = """\
import numpy as np


def pad(x):
    return np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], -1)
"""

CUT = f"""\
import sys
from itertools import islice
from attnverify.campaign import engine
generate = engine.generate_work_units
engine.generate_work_units = lambda *given: islice(generate(*given), {UNITS})
from attnverify.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A campaign that ends when so many units are brought to an end."""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client").mkdir()
    monkeypatch.chdir(tmp_path / "client")
    Path("mine.py").write_text(MINE)
    Path("helper.py").write_text(HELPER)


class Machines:
    """
    A scheduler and workers, each a process with a folder of its own, none of them the user's; in a
    network each is a machine that does not see the user's folder.
    """

    def __init__(self, folder: Path, network: Network | None = None) -> None:
        self.folder, self.running = folder, list[subprocess.Popen[bytes]]()
        self.network, self.entered = network, dict[str, list[str]]()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.at("scheduler")
        host = "127.0.0.1" if network is None else network.addresses["scheduler"]
        self.address = f"tcp://{host}:{port}"

    def at(self, name: str) -> list[str]:
        """Return what a command on one of the machines begins with."""
        if self.network is not None and name not in self.entered:
            self.entered[name] = self.network.add(name)
        return self.entered.get(name, [])

    def alone(self) -> list[str]:
        """Return what a command begins with that must not see the user's folder."""
        return hidden(self.folder / "client") if self.network is not None else []

    def try_alone(self) -> None:
        """Raise an error where a folder cannot be hidden."""
        subprocess.run([*self.at("scheduler"), *self.alone(), "true"], check=True)

    def start(self, *workers: str) -> None:
        """Start the scheduler, then the workers of these names."""
        host, port = self.address.removeprefix("tcp://").split(":")
        self.run("scheduler", "scheduler", "--host", host, "--port", port)
        for name in workers:
            self.run(name, "worker", self.address, "--nthreads", "1", "--local-directory", ".")

    def run(self, folder: str, *command: str) -> None:
        """Start one of them in its folder, as the leader of a group of processes."""
        there = self.folder / folder
        there.mkdir(exist_ok=True)
        line = [
            *self.at(folder),
            *self.alone(),
            sys.executable,
            "-m",
            "dask",
            *command,
            "--no-dashboard",
        ]
        own = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        log = (there / "log").open("wb")
        self.running.append(
            subprocess.Popen(
                line, cwd=there, env=own, stdout=log, stderr=log, start_new_session=True
            )
        )

    def kill(self, number: int) -> None:
        """End one of them, and all that it has started, by SIGKILL."""
        with suppress(ProcessLookupError):
            os.killpg(self.running[number].pid, signal.SIGKILL)
        self.running[number].wait()


@pytest.fixture(params=["one machine", "a network"])
def machines(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machines]:
    pytest.importorskip("distributed", reason="the engine of campaigns is an extra")
    with ExitStack() as opened:
        try:
            joined = opened.enter_context(network()) if request.param == "a network" else None
            found = Machines(tmp_path, joined)
            found.try_alone()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network of namespaces can be made: {error}")
        yield found
        for number in range(len(found.running)):
            found.kill(number)


def kept() -> list[str]:
    """The units that the journal holds; a line that is being written is none yet."""
    lines = [
        json.loads(line)[0]
        for path in Path(".attnverify/resume").glob("campaign-*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
    return [line for line in lines if line != "seed"]


def wait_for(units: int, process: subprocess.Popen[str]) -> None:
    while len(kept()) < units and process.poll() is None:
        time.sleep(0.05)


def start_campaign(machines: Machines, *more: str) -> subprocess.Popen[str]:
    line = ["campaign", "mine.py", *LINE, "--address", machines.address, *more]
    own = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*machines.at("client"), sys.executable, "-c", CUT, *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=own,
    )


def judged_here() -> dict[tuple[str, str], list[int]]:
    """Cases and checks of each cell, of the same units judged one after the other here."""
    mine = str(Path("mine.py").absolute())  # a process remembers a file by its name
    context = judging.campaign.make_context("campaign", [mine, *LINE, "--isolate", "none"])
    given = context.params
    run, _ = prepare(argparse.Namespace(**given | {"backend": [*given.pop("backends")]}))
    cells = run.cells(None)
    known: dict[Any, Any] = {place(cell): () for cell in cells}
    found: dict[tuple[str, str], list[int]] = {}
    for unit in islice(generate_work_units(cells, known, "", 0), UNITS):
        part = run_work_unit(unit, Limits(), "none", "here").result
        numbers = found.setdefault((unit.implementation, unit.aspect), [0, 0])
        numbers[:] = numbers[0] + part.cases, numbers[1] + part.checks
    return found


@pytest.mark.usefixtures("real_calls_are_judged")
@ENGINE
def test_what_a_killed_worker_and_a_killed_scheduler_cost_is_made_up_by_resume(
    machines: Machines,
) -> None:
    machines.start("first", "second")
    broken = start_campaign(machines)
    wait_for(3, broken)
    machines.kill(1)
    wait_for(5, broken)
    machines.kill(0)
    output = broken.communicate(timeout=300)[0]
    assert broken.returncode == 1 and "the scheduler has ended" in output, output
    assert "the same line with --resume" in output and "Traceback" not in output
    before = kept()
    assert 5 <= len(before) < UNITS
    machines.start("third", "fourth")
    again = start_campaign(machines, "--resume", "--report-json", "r.json")
    output = again.communicate(timeout=300)[0]
    assert f"resumed: {len(before)} units judged before" in output, output
    units = kept()
    assert len(units) == len(set(units)) == UNITS and units[: len(before)] == before
    report = json.loads(Path("r.json").read_text())
    assert {
        (tally["implementation"], tally["aspect"]): [tally["cases"], tally["checks"]]
        for tally in report["tallies"]
    } == judged_here()
    assert again.returncode == 1 and "a top-left causal mask" in output
    assert "--backend mine.py" in output and str(machines.folder / "third") not in output
    there = machines.folder / "third"
    assert list(there.rglob("worker-*")) and not list(there.rglob("mine.py"))  # it was taken back


def test_a_scheduler_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the engine of campaigns is an extra")
    monkeypatch.setattr(cluster, "CONNECT", 0.5)
    done = verify("campaign", "mine.py", *LINE, "--address", "tcp://127.0.0.1:9")
    assert done.status == 2 and "no scheduler answers at tcp://127.0.0.1:9" in done.output


# Versions


def test_versions_that_differ_are_told_with_their_workers() -> None:
    own = {"Python": "3.11.2", "numpy": "2.4", "torch": "2.13", "jax": ""}
    older = own | {"numpy": "2.0", "torch": ""}
    assert describe_differences(own, {"tcp://a:1": own}) == []
    assert describe_differences(own, {"tcp://a:1": own, "tcp://b:1": older}) == [
        "warning: numpy differs: 2.4 here, 2.0 on tcp://b:1",
        "warning: torch differs: 2.13 here, none on tcp://b:1",
    ]


def test_the_code_of_the_judge_is_a_version_too() -> None:
    assert {"attnverify", "Python", "numpy", "torch"} <= set(describe_versions())
    assert ", code " in describe_versions()["attnverify"]


def test_a_worker_that_has_no_attnverify_ends_a_campaign_before_it_begins() -> None:
    class Client:
        def run(self, function: Callable[[], Any], **given: Any) -> dict[str, Any]:
            return {"tcp://a:1": ModuleNotFoundError("No module named 'attnverify'")}

    with pytest.raises(Unreachable, match="worker tcp://a:1 cannot judge: No module named"):
        compare_versions(Client())


class Joined:
    """A client of three workers, of which two joined late: one is older, one cannot judge."""

    retired: tuple[str, ...] = ()

    def run(self, _: Any, workers: list[str], **given: Any) -> dict[str, Any]:
        (address,) = workers
        if address == "tcp://c:1":
            return {address: ModuleNotFoundError("No module named 'attnverify'")}
        return {address: describe_versions() | {"numpy": "1.0"}}

    def retire_workers(self, workers: list[str]) -> None:
        self.retired += (*workers,)


def test_a_worker_that_joins_late_is_compared_too_and_retired_where_it_cannot_judge(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client, workers = Joined(), {"tcp://a:1", "tcp://b:1", "tcp://c:1"}
    state = Campaign(None, {}, iter(()), 0.0, workers=workers, met={"tcp://a:1"})  # type: ignore[arg-type]
    meet_newcomers(state, client)
    told = capsys.readouterr().out.splitlines()
    assert any(line.endswith("1.0 on tcp://b:1") for line in told)
    assert any("worker tcp://c:1 cannot judge: No module" in line for line in told)
    assert not any("tcp://a:1" in line for line in told) and client.retired == ("tcp://c:1",)
    meet_newcomers(state, client)
    assert state.met == workers and not capsys.readouterr().out


# Files


def test_a_backend_by_path_brings_its_folder_and_one_of_ours_nothing(tmp_path: Path) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    assert folder_of("mine.py:shift_right") == str(tmp_path / "client")
    assert folder_of("numpy_ref") == folder_of("json.decoder") == folder_of("nowhere") == ""


def test_hidden_and_built_files_are_not_sent_and_large_folders_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (".git/x", "__pycache__/x", "env/pyvenv.cfg", "env/x", ".secret", "data/x"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")
    found = [path.relative_to(Path.cwd()).as_posix() for path in cluster.files_below(os.getcwd())]
    assert found == ["helper.py", "mine.py", "data/x"]
    assert archive_of([os.getcwd()]) == archive_of([os.getcwd()])
    monkeypatch.setattr(cluster, "MOST", 100)
    with pytest.raises(ValueError, match="--backend: wanted a folder of at most"):
        archive_of([os.getcwd()])


@pytest.mark.parametrize("absolute", [False, True])
def test_a_unit_is_rewritten_for_a_worker_and_what_comes_of_it_back(
    absolute: bool, tmp_path: Path
) -> None:
    source = f"{Path.cwd()}/mine.py" if absolute else "mine.py"
    sent = Sent("files", ((source, os.getcwd(), 0),))
    there = tmp_path / "worker" / "files" / "0"
    there.mkdir(parents=True)
    for name in ("mine.py", "helper.py"):
        Path(name).rename(there / name)
    unit = WorkUnit(source, "causal_mask", "bool", "values", "quick", 0)
    asked = as_there(unit, sent, str(tmp_path / "worker"))
    assert asked == replace(unit, source=str(there / "mine.py"))
    raw = run_work_unit(asked, Limits(), "none", "w")
    told = as_here(raw, unit, asked)
    records = [finding.record for finding in told.result.findings if finding.record]
    assert records and {record.backend for record in records} == {source}
    assert {record.program for record in records} <= set(told.scripts)
    assert str(there) not in json.dumps([told.result.as_dict(), told.scripts])
