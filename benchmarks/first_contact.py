"""
What a newcomer waits for: seconds from the command to its first line and to its first verdict, CPU
seconds and peak memory of all its processes together.

    python benchmarks/first_contact.py
    python benchmarks/first_contact.py my_kernel.py --profile quick

Without arguments the two runs that have aims are measured, a right kernel and the JAX example, in
some three minutes on two quiet cores; else everything is handed to ``attnverify run``. What that
prints goes to standard error. Linux alone.
"""

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = {
    "a right kernel": (f"{ROOT}/tests/sample_newcomers/alibi_right.py", "--profile", "quick"),
    "the JAX example": (f"{ROOT}/examples/jax_alibi.py", "--profile", "quick", "-n", "2"),
}
AIMS = {
    "a right kernel": {"first line": 1.0, "first verdict": 10.0},
    "the JAX example": {"whole run": 90.0, "peak memory, MB": 1500.0},
}
"""Seconds, and megabytes, on two quiet cores."""

MEGABYTE = 1024
"""In the kilobytes of /proc."""

VERDICTS = re.compile(rb"^[.FEsxX]", re.MULTILINE)
"""Progress begins a line of its own, and a letter is a cell."""


def family_of(process: int) -> list[int]:
    """List a process and all that it started."""
    try:
        text = " ".join(
            path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")
        )
    except OSError:
        return []
    return [process, *(member for child in text.split() for member in family_of(int(child)))]


def memory_of(process: int) -> int:
    """Return the kilobytes of a process; what it shares with others counts in part."""
    try:
        found = re.search(r"^Pss: +(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def seconds_of(process: int) -> float:
    """Return the processor seconds of a process so far, without those of its children."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """What a process and all that it started have used, looked at four times a second."""

    process: int
    peak: int = 0
    seconds: dict[int, float] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        family = family_of(self.process)
        self.peak = max(self.peak, sum(map(memory_of, family)))
        for member in family:
            self.seconds[member] = max(seconds_of(member), self.seconds.get(member, 0.0))

    def watch(self) -> None:
        while not self.ended.wait(0.25):
            self.look()


def measure(arguments: list[str]) -> dict[str, float]:
    """Run the command, and time what it prints."""
    line = [sys.executable, "-u", "-m", "attnverify", "run", *arguments]
    began, found, printed = time.monotonic(), dict[str, float](), b""
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        usage = Usage(process.pid)
        watcher = threading.Thread(target=usage.watch)
        watcher.start()
        while piece := os.read(process.stdout.fileno(), 65536):
            sys.stderr.buffer.write(piece)
            sys.stderr.flush()
            printed += piece
            now = time.monotonic() - began
            if b"\n" in printed:
                found.setdefault("first line", now)
            if "first verdict" not in found and VERDICTS.search(printed.partition(b"\n")[2]):
                usage.look()
                found |= {"first verdict": now, "CPU to it": sum(usage.seconds.values())}
        usage.ended.set()
        watcher.join()
    found |= {"whole run": time.monotonic() - began, "CPU": sum(usage.seconds.values())}
    return found | {"peak memory, MB": usage.peak / MEGABYTE, "exit status": process.returncode}


def format_table(name: str, found: dict[str, float]) -> str:
    """Write the figures of a run below its name, beside the aims that it has."""
    lines = [name]
    for what, value in found.items():
        unit = "" if "," in what or "status" in what else " s"
        aim = AIMS.get(name, {}).get(what)
        lines.append(f"  {what:16} {value:8.1f}{unit}" + (f"  (aim: {aim:g}{unit})" if aim else ""))
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    runs = {" ".join(arguments): tuple(arguments)} if arguments else RUNS
    load, tables = os.getloadavg()[0], []
    for name, line in runs.items():
        tables.append(format_table(name, measure(list(line))))
    print(*tables, sep="\n")
    print(f"load before: {load:.1f}  ({os.cpu_count()} processors)")


if __name__ == "__main__":
    main(sys.argv[1:])
