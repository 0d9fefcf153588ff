"""
Kernels of public repositories on the machine, beside NumPy in float64: 27 that were listed before
the machine could run all of them, and some of later lists.

    python -m tests.ptx.public.run DIRECTORY [part of a name ...] > tests/ptx/public/record.json

DIRECTORY holds the checkouts, each below its repository's name:

    git clone https://github.com/bearneck/triton_learn
    git clone https://github.com/linkedin/Liger-Kernel
    git clone https://github.com/ROCm/aiter
    git clone https://github.com/karpathy/llm.c
    git clone https://github.com/Bruce-Lee-LY/cuda_hgemm
    git clone https://github.com/siboehm/SGEMM_CUDA
    git clone https://github.com/xlite-dev/LeetCUDA
    git clone https://github.com/NVIDIA/cuda-samples

A kernel is right if its largest error is at most 64 roundings of its output, over its largest
value. ``--table`` instead of DIRECTORY prints the record as the two tables of the book have it.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from attnverify.ptx.findings import Finding, NotUnderstood
from attnverify.ptx.launchers.programs import Log, on_gpu
from tests.ptx.public.cuda_kernels import CUDA
from tests.ptx.public.files import Case, commit, largest
from tests.ptx.public.more_kernels import MORE
from tests.ptx.public.triton_kernels import TRITON

__all__ = ["CASES", "FIRST", "RECORD", "ROUNDINGS", "table", "verdict"]

FIRST = (*TRITON, *CUDA)
CASES = (*FIRST, *MORE)
RECORD = Path(__file__).with_name("record.json")
ROUNDINGS, WAIT = 64, 100
IN_PTX = re.compile(r"; kernel \w+; PTX line [^;)]*(; block \([^)]*\), thread \([^)]*\))?")


def verdict(case: Case, checkout: Path, log: Log) -> dict[str, Any]:
    """Run a kernel; what became of it, with the error over the largest value, or the words."""
    torch.manual_seed(0)
    launches, seconds = log.ran.total(), log.seconds
    try:
        error = largest(case.run(checkout))
        said: dict[str, Any] = {
            "verdict": "right" if error <= ROUNDINGS * case.unit else "wrong",
            "error": float(f"{error:.2g}"),
        }
    except Finding as finding:
        words = str(finding).replace(f"{checkout}/", "")
        said = {"verdict": "finding", "kind": finding.kind, "words": words}
    except NotUnderstood as refusal:
        said = {"verdict": "refused", "words": str(refusal).replace(f"{checkout}/", "")}
    done = {"launches": log.ran.total() - launches, "seconds": round(log.seconds - seconds, 2)}
    return said | done


def rows(folder: Path, parts: list[str]) -> list[dict[str, Any]]:
    made = []
    with on_gpu(90, timeout=WAIT) as log:
        for case in CASES:
            if parts and not any(part in case.name for part in parts):
                continue
            began, checkout = time.perf_counter(), folder / case.repository
            about = {"kernel": case.name, "repository": case.repository, "file": case.file}
            row = about | {"commit": commit(checkout)[:7]} | verdict(case, checkout, log)
            made.append(row)
            print(row, f"{time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return made


def table(record: list[dict[str, Any]]) -> str:
    """Return the record as rows of the book's table."""
    lines = []
    for row in record:
        said = f"*{IN_PTX.sub('', row['words'])}*" if "words" in row else f"{row['error']:.1e}"
        where = f"{row['repository']} {row['commit']}"
        cells = f"``{row['kernel']}``", where, said, f"{row['seconds']:.2f}"
        lines.append("   * - " + "\n     - ".join(cells) + "\n")
    return "".join(lines)


def main(arguments: list[str]) -> None:
    if arguments == ["--table"]:
        record, first = json.loads(RECORD.read_text()), len(FIRST)
        print(table(record[:first]), table(record[first:]), sep="\n", end="")
        return
    made = rows(Path(arguments[0]).resolve(), arguments[1:])
    lines = ",\n".join(json.dumps(row) for row in made)
    print(f"[\n{lines}\n]")


if __name__ == "__main__":
    main(sys.argv[1:])
