"""
What Nsight Compute counts of each kernel on a GPU, beside what the machine code predicts: issue
slots for 64 x 64 pairs.

    python -m benchmarks.profile --record benchmarks/results/nvidia-h100/2026-12-01/why.json

``python -m benchmarks.races`` shows the newest file of that name beside the races.

Each kernel runs once under ``ncu`` in a process of its own, in bfloat16 at a width of 64. Without a
GPU (``--device cpu``) it runs without ``ncu`` at a small size, and the prediction stands alone.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attnverify import ROOT

__all__ = ["KERNELS", "Profiled", "main", "measured_slots", "read_counts"]

COUNT, UTILISATION = "smsp__inst_issued.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed"
SECTIONS = ("SpeedOfLight", "WarpStateStats", "MemoryWorkloadAnalysis")
ALIBI, XL = "alibi_attention", "transformer_xl_attention"
PLAIN = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Call:
    """A call of ours of which a kernel is profiled: a causal one has half of the pairs."""

    operation: str
    kernel: str
    gradient: bool = False

    @property
    def causal(self) -> bool:
        return self.operation in (ALIBI, XL)


KERNELS = {
    "forward": Call(PLAIN, "forward"),
    "forward, ALiBi": Call(ALIBI, "forward"),
    "forward, Transformer-XL": Call(XL, "forward"),
    "forward, learned": Call("learned_relative_attention", "forward"),
    "gradient of queries, Transformer-XL": Call(XL, "backward_query", gradient=True),
    "gradient of keys, Transformer-XL": Call(XL, "backward_key", gradient=True),
}
"""By their names in the table of the machine code."""


@dataclass(frozen=True)
class Profiled:
    """A kernel: issue slots of 64 x 64 pairs, predicted and measured, and how busy it was."""

    kernel: str
    predicted: float | None
    measured: float | None = None
    busy: float | None = None
    why_not: str = ""

    def __str__(self) -> str:
        told = [f"{x:9.1f}" if x is not None else f"{'-':>9}" for x in self.figures]
        return f"{self.kernel:36}{''.join(told)}  {self.why_not}".rstrip()

    @property
    def figures(self) -> tuple[float | None, ...]:
        return self.predicted, self.measured, self.busy


def sizes(device: str) -> dict[str, int]:
    """The sizes of a call: on a GPU those of the benchmarks."""
    if device == "cpu":
        return {"B": 1, "H": 1, "N": 37, "M": 37, "D": 16, "E": 16, "P": 37}
    return {"B": 8, "H": 32, "N": 2048, "M": 2048, "D": 64, "E": 64, "P": 2048}


def run_kernel(name: str, device: str) -> None:
    """Call the implementation once, on inputs drawn on the device."""
    from attnverify.backends.loader import load
    from attnverify.bench.measure.cases import END, Case
    from attnverify.bench.measure.inputs import draw_inputs, to_library

    asked = KERNELS[name]
    options: dict[str, Any] = END if "learned" in asked.operation else {}
    mode = "both" if asked.gradient else "forward"
    case = Case(
        name, asked.operation, sizes(device), "bfloat16", mode, device="cuda", options=options
    )
    backend = load("torch_impl")
    called = f"{case.timed}_triton"
    (found,) = (i for i in backend.implementations if i.name == called)
    assert backend.library is not None
    inputs = draw_inputs(case, 1, device)
    given = {n: to_library(backend.library, x, case.dtype) for n, x in inputs.items()}
    found.function(**given)
    backend.library.synchronize()


def read_counts(text: str, kernel: str) -> dict[str, float]:
    """Read the metrics of the first launch of a kernel from what ``ncu --csv`` prints."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        return {}
    rows = [row for row in csv.DictReader(lines[head:]) if row.get("Kernel Name") == kernel]
    first = [row for row in rows if row["ID"] == rows[0]["ID"]]
    return {
        row["Metric Name"]: float(row["Metric Value"].replace(",", ""))
        for row in first
        if row["Metric Name"] in (COUNT, UTILISATION)
    }


def measured_slots(issued: float, asked: Call, of: dict[str, int]) -> float:
    """
    Issue slots of one of the four parts of a processor for 64 x 64 pairs, of all that were issued.
    """
    pairs = of["B"] * of["H"] * of["N"] * of["M"] * (0.5 if asked.causal else 1.0)
    return issued / 4 / (pairs / 4096)


def profile(name: str, device: str) -> Profiled:
    """Run a kernel, under ``ncu`` where there is a GPU."""
    asked, predicted = KERNELS[name], predict(name)
    call = [sys.executable, "-m", "benchmarks.profile", "--call", name, "--device", device]
    tool = shutil.which("ncu", path=find_path()) if device == "cuda" else None
    watch = [] if tool is None else [tool, *options_of(asked.kernel)]
    ran = subprocess.run(
        [*watch, *call], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    if ran.returncode:
        return Profiled(name, predicted, why_not=" | ".join(ran.stderr.strip().splitlines()[-3:]))
    if tool is None:
        return Profiled(name, predicted, why_not="no GPU" if device == "cpu" else "no ncu here")
    counts = read_counts(ran.stdout, asked.kernel)
    if COUNT not in counts:
        return Profiled(name, predicted, why_not="ncu told nothing of the kernel")
    slots = measured_slots(counts[COUNT], asked, sizes(device))
    return Profiled(name, predicted, slots, counts.get(UTILISATION))


def find_path() -> str:
    """Where tools of CUDA lie, beside what the environment says."""
    import os

    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])


def options_of(kernel: str) -> list[str]:
    """What ``ncu`` is told."""
    sections = [word for name in SECTIONS for word in ("--section", name)]
    chosen = ["--metrics", f"{COUNT},{UTILISATION}", "-k", kernel, "-c", "1"]
    return ["--csv", "--clock-control", "none", *sections, *chosen]


@cache
def predict(name: str) -> float | None:
    """The issue slots by the machine code; None where the tools to read it are not here."""
    from benchmarks.machine_code.table import find_triton_row

    try:
        return find_triton_row(name).issue
    except (OSError, subprocess.CalledProcessError):
        return None


def main(
    arguments: list[str] | None = None, profile: Callable[[str, str], Profiled] = profile
) -> int:
    """Profile every kernel, and write down each as it ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--call", choices=KERNELS, help="run this kernel and nothing else")
    parser.add_argument("--record", type=Path, help="keep the figures there, as JSON")
    given = parser.parse_args(arguments)
    if given.call:
        run_kernel(given.call, given.device)
        return 0
    print(f"{'issue slots of 64 x 64 pairs':36}{'predicted':>9}{'measured':>9}{'busy %':>9}")
    found = []
    for name in KERNELS:
        found.append(profile(name, given.device))
        print(found[-1], flush=True)
        if given.record:
            given.record.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    known = ("", "no GPU")
    return int(any(one.why_not not in known for one in found))


if __name__ == "__main__":
    sys.exit(main())
