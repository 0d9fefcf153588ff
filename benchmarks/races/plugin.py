"""
What a run of ``tests/bench_*.py`` needs from pytest: which files, which cases, the clock of the
record, the closing lines.
"""

import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnverify.bench.measure import cases as named
from attnverify.bench.measure.cases import Case
from attnverify.bench.measure.contestants import Contestant, contestants
from attnverify.bench.own_kernel import device
from attnverify.bench.report.results import (
    device_name,
    files,
    new_results_file,
)
from benchmarks.races.goals import closing_lines
from benchmarks.races.lists import LISTS, cases_of_list
from benchmarks.races.recorded import Races, signature


def choose_cases(chapter: str, races: Races) -> list[Case]:
    """
    List the cases of a chapter: those of this device, or all of them once at their small sizes,
    where many are the same.
    """
    if races.measured:
        return cases_of_list(races.cases, chapter, races.device)
    small = [case.small for on in ("cpu", "cuda") for case in named.cases(chapter, on)]
    return list({signature(replace(case, name="")): case for case in reversed(small)}.values())[
        ::-1
    ]


KEY = pytest.StashKey[Races]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnverify")
    group.addoption(
        "--benchmark-record",
        metavar="DIR",
        nargs="?",
        const="benchmarks/results",
        help="keep the results as DIR/<device>/<date>/<time>.json, written after every race",
    )
    group.addoption(
        "--benchmark-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="begin no race after so many seconds (default: none is left out)",
    )
    group.addoption(
        "--benchmark-cases",
        choices=LISTS,
        default="all",
        help="on a GPU: twelve cases, those of an hour, or all (default)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """
    Before pytest-benchmark reads its options: where the record goes, and what it is compared with.
    """
    given = config.option
    measured = not getattr(given, "benchmark_disable", True)
    if getattr(given, "benchmark_record", None) and not given.benchmark_json:
        given.benchmark_json = new_results_file(Path(given.benchmark_record), device_name(device()))
    path = getattr(given, "benchmark_json", None)
    config.stash[KEY] = Races(
        measured,
        path if isinstance(path, Path) else None,
        given.benchmark_seconds,
        given.benchmark_cases,
    )
    if getattr(given, "benchmark_compare", None) is True:
        last = latest(Path(given.benchmark_record or "benchmarks/results"), device_name(device()))
        given.benchmark_compare = str(last) if last else []
        if last and not given.benchmark_compare_fail:
            given.benchmark_compare_fail = [AboveNoise()]
    if getattr(given, "benchmark_only", False) and not given.benchmark_columns:
        given.benchmark_columns = ["median", "iqr", "min", "rounds"]


def latest(root: Path, device: str) -> Path | None:
    found = [path for path in files(root) if path.parent.parent.name == device]
    return found[-1] if found else None


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """What a machine is stands in the results, and how busy it was, not what it is called."""
    machine_info.pop("node", None)
    machine_info["load"] = round(os.getloadavg()[0], 1)
    for changing in ("hz_actual", "hz_actual_friendly"):
        machine_info["cpu"].pop(changing, None)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """
    Who did not take part stands in the results too, with the reason; the samples of each round do
    not: their medians, quantiles and ratios are with the other facts.
    """
    for benchmark in output_json["benchmarks"]:
        benchmark["stats"].pop("data", None)
    output_json["left_out"] = [
        record for record in config.stash[KEY].records if not record["seconds"]
    ]


class AboveNoise:
    """
    What pytest-benchmark asks of each benchmark that is compared: ours have got slower by more than
    the noise.

    The noise is three times the spread of both runs together, and what the machine's own ceilings
    have changed.
    """

    def fails(self, current: Any, compared: dict[str, Any]) -> str | None:
        then, now = compared["median"], current["median"]
        if not current["extra_info"].get("ours") or not then:
            return None
        spread = ((current["iqr"] / now) ** 2 + (compared["iqr"] / then) ** 2) ** 0.5
        noise = 3 * spread + compute_drift(current["extra_info"], compared["extra_info"])
        slower = now / then - 1
        return f"{slower:+.1%} slower, noise {noise:.1%}" if slower > noise else None


def compute_drift(now: dict[str, Any], then: dict[str, Any]) -> float:
    """Compute how far the ceilings of the two runs are apart, relatively."""
    pairs = [
        (now.get("ceilings", {}).get(name), then.get("ceilings", {}).get(name))
        for name in ("flops", "bandwidth")
    ]
    return max((abs(a / b - 1) for a, b in pairs if a and b), default=0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """
    Benchmarks are collected by ``--benchmark-only``, which collects nothing else, and where a file
    is named.
    """
    if collection_path.suffix != ".py" or any(
        str(collection_path) in str(Path(arg.partition("::")[0]).resolve()) for arg in config.args
    ):
        return None
    is_bench = collection_path.name.startswith("bench_")
    return (
        True
        if is_bench != bool(getattr(config.option, "benchmark_only", False))
        and collection_path.name != "conftest.py"
        else None
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entrant" not in metafunc.fixturenames:
        return
    races = metafunc.config.stash[KEY]
    found = [
        (case, contestant)
        for case in choose_cases(metafunc.module.CHAPTER, races)
        for contestant in contestants(case)
    ]
    metafunc.parametrize(
        "entrant", found, ids=[ident(case, contestant) for case, contestant in found]
    )


def ident(case: Case, contestant: Contestant) -> str:
    return f"{case.device}-{case.id}-{contestant.label}".replace(" ", "_")


@pytest.fixture(scope="session")
def races(pytestconfig: pytest.Config) -> Races:
    """The races of this run."""
    return pytestconfig.stash[KEY]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: Any, config: pytest.Config
) -> Generator[None, None, None]:
    """The goals come last, also where a regression is raised before them."""
    try:
        return (yield)
    finally:
        run = config.stash[KEY]
        if run.records and run.measured:
            terminalreporter.section("goals")
            for line in closing_lines(run.records, run.device):
                terminalreporter.write_line(line)
