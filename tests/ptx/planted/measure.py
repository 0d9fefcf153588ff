"""
What the machine, and others, say of the bugs that are told in public, and of their repaired twins.

    python -m tests.ptx.planted.measure [ttsem=PYTHON] [triton-viz=PYTHON] > measured.json

Each program in Triton runs in a process of its own, unchanged: on the machine and under ttsem for
"cuda", in Triton's interpreter and under triton-viz's sanitizer for "cpu". PYTHON is the
interpreter of the environment that has the tool. The kernels in CUDA C++ run on the machine alone.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attnverify import ptx
from attnverify.ptx.launchers.nvrtc import compile_source
from tests.ptx.planted.table import Bug, Kernel, Program
from tests.ptx.planted.told_cuda import TOLD_CUDA
from tests.ptx.planted.told_triton import HEAD, TOLD_TRITON

__all__ = ["NUMBERS", "is_seen", "launch", "rows", "source_of", "summary"]

PATIENCE = 40
NUMBERS = ("right numbers", "wrong numbers", "hangs", "dies", "error")
"""What a program shows of itself: no tool has said anything."""
HOST = {"DEVICE": "cpu"}


def source_of(program: Kernel | Program, bug: Bug | None) -> str:
    source = program.source if bug is None else program.source.replace(bug.right, bug.wrong)
    return source if isinstance(program, Kernel) else HEAD + source


def rows() -> Iterator[tuple[Kernel | Program, Bug | None]]:
    """Every twin, and behind it its bugs."""
    for program in (*TOLD_CUDA, *TOLD_TRITON):
        yield program, None
        yield from ((program, bug) for bug in program.bugs)


def launch(kernel: Kernel, source: str, **settings: object) -> list[Any]:
    given = kernel.arguments()
    compiled = compile_source(source, kernel.options)["k"]
    compiled.launch(kernel.grid, kernel.threads, given, **{**kernel.settings, **settings})
    return given


def of_cuda(kernel: Kernel, source: str) -> tuple[str, float]:
    began = time.process_time()
    try:
        kernel.answer(launch(kernel, source, timeout=PATIENCE))
        said = "right numbers"
    except ptx.Finding as finding:
        said = finding.kind
    except AssertionError:
        said = "wrong numbers"
    return said, time.process_time() - began


def of_program(command: list[str], environment: dict[str, str]) -> tuple[str, int, float]:
    """What a process prints, its status and the CPU seconds it took; status 124: it hangs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE,
                              env=os.environ | environment)  # fmt: skip
        said, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        said, status = "", 124
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return said, status, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_numbers(said: str, status: int) -> str:
    if status == 124:
        return "hangs"
    if status < 0:
        return "dies"
    return "wrong numbers" if "AssertionError" in said else "error" if status else "right numbers"


def on_machine(said: str, status: int) -> str:
    found = re.search(r"PTX machine: 1 stopped: (.*) in ", said)
    refused = "cannot be accessed from Triton (cpu tensor?)" in said
    return found[1] if found else "cpu tensor" if refused else by_numbers(said, status)


def under_ttsem(said: str, status: int) -> str:
    found = re.search(r"^(\w+): \d+ launch", said, re.MULTILINE)
    word = found[1] if found else ""
    return word if word not in ("", "ok") else by_numbers(said, status)


def under_viz(said: str, status: int) -> str:
    """Its sanitizer solves for addresses and computes no numbers: wrong ones say nothing."""
    found = "IMA Diagnostic Report" in said or "Out-Of-Bounds" in said
    other = by_numbers(said, status)
    return "out of bounds" if found else "right numbers" if other == "wrong numbers" else other


Tool = tuple[Callable[[str], list[str]], dict[str, str], Callable[[str, int], str]]


def tools(given: dict[str, str]) -> dict[str, Tool]:
    """How each tool runs a file, with which environment, and how it is understood."""
    here, module = sys.executable, "attnverify.ptx"
    made: dict[str, Tool] = {
        "machine": (lambda file: [here, "-m", module, "run", file], {}, on_machine),
        "interpreter": (lambda file: [here, file], HOST | {"TRITON_INTERPRET": "1"}, by_numbers),
    }
    if "ttsem" in given:
        made["ttsem"] = (
            lambda file: [given["ttsem"], "-m", "ttsem.sanitize", file], {}, under_ttsem,
        )  # fmt: skip
    if "triton-viz" in given:
        program = str(Path(given["triton-viz"]).with_name("triton-sanitizer"))
        made["triton-viz"] = (lambda file: [program, file], HOST, under_viz)
    return made


def is_seen(said: str) -> bool:
    """Whether a tool has told of something, and not the numbers of the program alone."""
    return said not in NUMBERS


def summary(record: list[dict[str, Any]]) -> list[str]:
    """Of each tool, as rows of the book: bugs seen, by numbers alone, and not; twins stopped."""
    lines, tools = [], ("interpreter", "ttsem", "triton-viz")
    for label, name, wanted in (
        ("the machine, CUDA C++", "machine", False),
        ("the machine, Triton", "machine", True),
        *((tool, tool, True) for tool in tools),
    ):
        rows = (row for row in record if (tools[0] in row) is wanted)
        mine = [(bool(row["bug"]), *row[name]) for row in rows]
        bugs = [said for bug, said, _ in mine if bug]
        seen, right = sum(map(is_seen, bugs)), bugs.count("right numbers")
        stopped = sum(said != "right numbers" for bug, said, _ in mine if not bug)
        cells = (len(bugs), seen, len(bugs) - seen - right, right, stopped)
        seconds = sum(seconds for *_, seconds in mine) / len(mine)
        shown = "\n     - ".join([label, *map(str, cells), f"{seconds:.2f}"])
        lines.append(f"   * - {shown}\n")
    return lines


def main(arguments: list[str]) -> None:
    known, made = tools(dict(each.split("=", 1) for each in arguments)), []
    with tempfile.TemporaryDirectory() as folder:
        for program, bug in rows():
            row: dict[str, Any] = {"program": program.name, "bug": bug.name if bug else None}
            source = source_of(program, bug)
            if isinstance(program, Kernel):
                said = {"machine": of_cuda(program, source)}
            else:
                file = Path(folder, "program.py")
                file.write_text(source)
                said = {}
                for name, (command, environment, understood) in known.items():
                    words, status, seconds = of_program(command(str(file)), environment)
                    said[name] = understood(words, status), seconds
            row |= {name: [what, round(seconds, 2)] for name, (what, seconds) in said.items()}
            made.append(row)
            print(row, file=sys.stderr, flush=True)
    lines = ",\n".join(json.dumps(row) for row in made)
    print(f"[\n{lines}\n]")


if __name__ == "__main__":
    main(sys.argv[1:])
