"""
What of a processor decides the races of a CPU: the same races with one thread and with more, with
narrower vector units, and with blocks for smaller and larger caches.

    python -m benchmarks.processor --record

Each setting runs in a process of its own, for PyTorch reads most of it as it is loaded; the
settings take turns, so that a busy machine slows all of them. Times are CPU seconds. What is told
of a race is how many times as long the peer took, and of a setting how many times as long each of
the two took under it as under the first: a peer that gets slower is no merit of ours.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from typing import Any

from attnverify import ROOT
from attnverify.backends.commit import commit_of_suite
from attnverify.bench.measure.cases import CPU, Case
from attnverify.bench.measure.contestants import Contestant, contestants, given, prepared
from attnverify.bench.measure.race import Entry, enter
from attnverify.bench.measure.shares import ask
from attnverify.bench.report.results import device_name, new_results_file
from attnverify.inputs.recipe import Inputs
from attnverify.machine import processor_name

__all__ = ["RACES", "SETTINGS", "Setting", "main", "name_processor", "summarise_settings"]

OURS = "torch_impl:blocked"
RACES = {
    ("relative N=1024", "forward"): "labml-nn",
    ("relative N=1024", "both"): "labml-nn",
    ("additive square 256", "forward"): "documents",
    ("alibi N=2048", "forward"): "labml-nn",
}
"""The races that differ between machines, and whom their goals name."""

UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS")
"""What a shell may say of itself and no setting does."""


@dataclass(frozen=True)
class Setting:
    """Threads, the environment of the process, and how many scores stand in a block at once."""

    name: str
    threads: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    elements: int = 0


def narrow(name: str, aten: str, onednn: str, mkl: str) -> Setting:
    """Vector units of PyTorch's own loops, of oneDNN and of MKL."""
    told = {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn}
    return Setting(name, 1, told | {"MKL_ENABLE_INSTRUCTIONS": mkl})


SETTINGS = (
    Setting("one thread"),
    Setting("two threads", threads=2),
    Setting("two threads, asleep as they wait", 2, {"OMP_WAIT_POLICY": "passive"}),
    narrow("256 bits", "avx2", "AVX2", "AVX2"),
    Setting("256 bits in PyTorch's loops", 1, {"ATEN_CPU_CAPABILITY": "avx2"}),
    narrow("128 bits", "default", "SSE41", "SSE4_2"),
    *(Setting(f"blocks of {4 * n // 2**10} KiB", elements=n) for n in (2**16, 2**17, 2**19, 2**20)),
)
"""
The first is what the others are compared with: blocks of 1024 KiB, the widest vector units. Threads
that spin as they wait for each other spend CPU seconds, the more the busier the machine is.
"""


def chosen_cases(only: str = "") -> list[Case]:
    """List the cases of the races whose name holds these letters."""
    return [case for case in CPU if (case.name, case.mode) in RACES and only in describe(case)]


def chosen_settings(only: str = "") -> tuple[Setting, ...]:
    """List the settings whose name holds these letters, after the first."""
    return (SETTINGS[0], *(one for one in SETTINGS[1:] if only in one.name))


def describe(case: Case) -> str:
    return f"{case.name}, {case.mode}"


def race_here(setting: Setting, calls: int, only: str = "") -> list[dict[str, Any]]:
    """Run the races in this process."""
    torch = import_module("torch")
    torch.set_num_threads(setting.threads)
    if setting.elements:
        for name in ("tiles", "additive_operators"):
            module = import_module(f"attnverify.torch_impl.blocked.{name}")
            module.ELEMENTS = setting.elements  # type: ignore[attr-defined]
    units = torch.backends.cpu.get_cpu_capability()
    return [race_two(case, calls) | {"units": units} for case in chosen_cases(only)]


def race_two(case: Case, calls: int) -> dict[str, Any]:
    """
    Judge both on the case's own shape, then time them in turn: CPU seconds of all threads, which a
    busy machine does not count.
    """
    question = ask(case)
    entries = {entry.contestant.label: entry for entry in map(partial(enter, question), two(case))}
    ours, peer = entries[OURS], entries[RACES[case.name, case.mode]]
    told = {"race": describe(case), "peer": peer.contestant.label}
    told |= {"verdict": ours.judgement.verdict, "of peer": peer.judgement.verdict}
    if not ours.runs or not peer.runs:
        return told | {"ours": [], "theirs": []}
    bare = [prepare_call(case, entry, question.inputs) for entry in (ours, peer)]
    pairs = [tuple(map(cpu_seconds, bare)) for _ in range(calls + 1)][1:]  # the first warms up
    return told | {"ours": [a for a, _ in pairs], "theirs": [b for _, b in pairs]}


def two(case: Case) -> list[Contestant]:
    """Who take part: ours and the peer."""
    return [one for one in contestants(case) if one.label in (OURS, RACES[case.name, case.mode])]


def prepare_call(case: Case, entry: Entry, inputs: Inputs) -> Callable[[], Any]:
    assert entry.implementation is not None
    arrays = given(entry.contestant, entry.implementation, inputs, case.dtype)
    return prepared(case, entry.implementation, arrays)


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of this process in a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def run_setting(setting: Setting, calls: int, only: str = "") -> list[dict[str, Any]]:
    """Run the races in a process that has the setting; nothing where it cannot."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    given = kept | setting.environment | {"OMP_NUM_THREADS": str(setting.threads)}
    command = [sys.executable, "-m", "benchmarks.processor", "--here", json.dumps(asdict(setting))]
    command += ["--calls", str(calls), "-k", only]
    ran = subprocess.run(
        command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=1200, check=False
    )
    if ran.returncode:
        print(f"{setting.name}: {' | '.join(ran.stderr.strip().splitlines()[-2:])}", flush=True)
        return []
    return list(json.loads(ran.stdout.splitlines()[-1]))


def summarise_settings(
    samples: Iterable[tuple[Setting, list[dict[str, Any]]]],
) -> list[dict[str, Any]]:
    """
    Summarise each race under each setting: the median over all rounds of what the peer took over
    ours in the same round, and of both times beside those of the first setting.
    """
    rounds: dict[tuple[str, str], dict[str, Any]] = {}
    for setting, races in samples:
        for one in races:
            kept = rounds.setdefault(
                (one["race"], setting.name),
                {"peer": one["peer"], "units": one["units"], "ours": [], "theirs": []},
            )
            if one["verdict"] == "correct":
                kept["ours"] += one["ours"]
                kept["theirs"] += one["theirs"]
    found = []
    for (race, name), kept in rounds.items():
        first = rounds.get((race, SETTINGS[0].name), kept)
        found.append(summarise_one(race, name, kept, first))
    return found


def summarise_one(
    race: str, name: str, kept: dict[str, Any], first: dict[str, Any]
) -> dict[str, Any]:
    """One row of the table; without figures where ours was not right."""
    told = {"race": race, "setting": name, "peer": kept["peer"], "units": kept["units"]}
    if not kept["ours"] or not first["ours"]:
        return told | {"rounds": 0}
    ours, theirs = median(kept["ours"]), median(kept["theirs"])
    pairs = zip(kept["theirs"], kept["ours"], strict=True)
    return told | {
        "rounds": len(kept["ours"]),
        "ratio": median(slow / fast for slow, fast in pairs),
        "seconds": ours,
        "ours_over_first": ours / median(first["ours"]),
        "theirs_over_first": theirs / median(first["theirs"]),
    }


def name_processor() -> dict[str, Any]:
    """Name the processor, its caches and its vector units."""
    found: dict[str, Any] = {"processor": processor_name(), "cores": os.cpu_count()}
    found["system"] = f"{platform.system()} {platform.machine()}"
    caches = Path("/sys/devices/system/cpu/cpu0/cache")
    for index in sorted(caches.glob("index*")):
        level, kind, size = ((index / n).read_text().strip() for n in ("level", "type", "size"))
        found[f"L{level} {kind.lower()}"] = size
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return found
    flags = next((line.split(":")[1].split() for line in lines if line.startswith("flags")), [])
    found["vector units"] = [x for x in ("avx2", "fma", "avx512f", "amx_tile") if x in flags]
    known = ("vendor_id", "cpu family", "model", "stepping")
    return found | {
        line.partition(":")[0].strip(): line.partition(":")[2].strip()
        for line in reversed(lines)
        if line.partition(":")[0].strip() in known
    }


def show(row: dict[str, Any]) -> str:
    """A line of the table."""
    if not row["rounds"]:
        return f"{row['race']:32}{row['setting']:30}  not measured"
    figures = row["ratio"], row["ours_over_first"], row["theirs_over_first"]
    return f"{row['race']:32}{row['setting']:30}" + "".join(f"{x:9.2f}" for x in figures)


def main(arguments: list[str] | None = None) -> int:
    """Run the settings in turn, and write down what was measured after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processor", description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="processes of each setting")
    parser.add_argument("--calls", type=int, default=7, help="of both, in each process")
    parser.add_argument("-k", default="", help="only races whose name holds this")
    parser.add_argument("--setting", default="", help="the first, and those whose name holds this")
    parser.add_argument("--record", action="store_true", help="keep it in benchmarks/processor")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.here:
        print(json.dumps(race_here(Setting(**json.loads(asked.here)), asked.calls, asked.k)))
        return 0
    samples: list[tuple[Setting, list[dict[str, Any]]]] = []
    out = (
        new_results_file(ROOT / "benchmarks" / "processor", device_name("cpu"))
        if asked.record
        else None
    )
    for setting in chosen_settings(asked.setting) * asked.turns:
        samples.append((setting, run_setting(setting, asked.calls, asked.k)))
        if out:
            told = {"machine": name_processor(), "load": os.getloadavg()}
            told |= {"commit": commit_of_suite(), "torch": metadata.version("torch")}
            told["rows"] = summarise_settings(samples)
            out.write_text(json.dumps(told, indent=1) + "\n")
    print(f"{'race':32}{'setting':30}{'ratio':>9}{'ours':>9}{'peer':>9}")
    for row in summarise_settings(samples):
        print(show(row))
    return int(not samples)


if __name__ == "__main__":
    sys.exit(main())
