"""
Doctor: what this machine can run and what is missing, in words.

Nothing that may crash is imported here: every library is asked in a process of its own, which may
raise, hang or die, and is then told as broken. This module needs the standard library alone, so
that it answers also where numpy does not.
"""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from attnverify import describe_installation
from attnverify.device_assignment import gpu_descriptions
from attnverify.machine import PLATFORMS
from attnverify.report.terminal_colours import print_folded

SECONDS = 120.0
"""A first import may read a gigabyte from a cold disk."""


@dataclass(frozen=True)
class Question:
    """
    One thing that may be there.

    ask      a program's name, or Python that prints what there is
    enables  what it is good for; get: the line that gets it
    needed   whether the main job cannot do without; program: whether ``ask`` is a program and no
             Python
    """

    name: str
    ask: str
    enables: str
    get: str
    needed: bool = False
    program: bool = False


@dataclass(frozen=True)
class Answer:
    """What there is: ``ok``, ``missing`` or ``broken``, and in words."""

    question: Question
    state: str
    words: str

    def lines(self) -> Iterator[str]:
        yield f"{self.state:<9}{self.question.name:<20}{self.words}"
        if self.state != "ok":
            yield (
                f"{'':<9}{'':<20}{'needed for' if self.question.needed else 'would enable'} "
                f"{self.question.enables}"
            )
            if self.question.get:
                yield f"{'':<9}{'':<20}get it: {self.question.get}"


def package(
    name: str, enables: str, get: str = "", needed: bool = False, module: str = "", more: str = ""
) -> Question:
    """
    Describe a package, asked for its version by importing it; ``more`` is Python that appends to
    the list ``words``.
    """
    module = module or name
    ask = (
        f"import {module}\nfrom importlib.metadata import version\nwords = "
        f"[version({name!r})]\n{more}\nprint(', '.join(words))"
    )
    return Question(name, ask, enables, get or f"pip install {name}", needed)


def program(name: str, enables: str, get: str) -> Question:
    return Question(name, name, enables, get, program=True)


def backend(name: str, needed: bool = False) -> Question:
    return Question(
        f"backend {name}",
        BACKEND.format(name),
        "judging it: attnverify run --backend " + name,
        "",
        needed,
    )


BACKEND = """
from attnverify.backends.loader import load
found = load({!r})
if found.broken or found.missing:
    raise SystemExit("missing: " + found.missing if found.missing else "broken: " + found.broken)
print(f"{{len(found.implementations)}} implementations on {{found.device}}, {{found.versions}}")
"""
TORCH = """
found = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
words.append("CUDA on " + ", ".join(found) if found else "CPU alone")
"""
TRITON = """
import os, torch
interpreted = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()
where = "no GPU: kernels run on the PTX machine; our own are interpreted as well"
words.append(where if interpreted else "kernels are compiled")
"""
CUPY = """
try:
    count = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    count = 0
words.append(f"{count} CUDA device" if count else "no CUDA device: cupy_impl runs on NumPy arrays")
"""
NVRTC = "from cupy.cuda import nvrtc\nprint('.'.join(map(str, nvrtc.getVersion())))"
DEBIAN = "apt-get install "


QUESTIONS = (
    package("numpy", "everything", needed=True),
    package("ml_dtypes", "bfloat16 in NumPy", needed=True),
    package("jaxtyping", "the specification's annotations", needed=True),
    package("hypothesis", "hunting for failures, and shrinking them", needed=True),
    package("click", "the command line", needed=True),
    package("rich", "tables and progress at a terminal", needed=True),
    package("jinja2", "reports as pages of HTML", needed=True),
    package("pytest", "attnverify run and pytest -m differential", needed=True),
    package("pytest-xdist", "several processes: attnverify run -n 2", module="xdist"),
    package("torch", "torch_impl and every backend of PyTorch tensors", more=TORCH),
    package("triton", "Triton kernels, a user's and those of torch_impl", more=TRITON),
    Question(
        "cupy",
        f"import cupy\nwords = [cupy.__version__]\n{CUPY}\nprint(', '.join(words))",
        "cupy_impl and every backend of CuPy arrays",
        "pip install cupy-cuda13x (cupy-cuda12x for a CUDA 12 driver)",
    ),
    Question(
        "nvrtc", NVRTC, "compiling CUDA C++ kernels for a GPU", "pip install 'cupy-cuda13x[ctk]'"
    ),
    program("g++", "the CUDA C++ kernels, compiled for this machine's processor", DEBIAN + "g++"),
    program(
        "compute-sanitizer",
        "looking for races and stray reads of GPU kernels",
        "it comes with NVIDIA's CUDA toolkit",
    ),
    package("distributed", "attnverify campaign: hours, on many cores or machines"),
    package("transformers", "examples/transformers_backend.py"),
    package("x-transformers", "examples/x_transformers_backend.py", module="x_transformers"),
    package(
        "labml-nn",
        "examples/labml_backend.py",
        "pip install --no-deps labml-nn==0.5.1 labml==0.4.168",
        module="labml_nn",
    ),
    package("sphinx", "building the book in docs/", "pip install -e '.[docs]' -c constraints.txt"),
    program("chromium", "the tests that open pages: pytest -m browser", DEBIAN + "chromium"),
)
OURS = ("numpy_ref", "torch_impl", "cupy_impl")


def main() -> int:
    """Ask everything and tell it; 0 if the main job can run here, 1 if not."""
    named = [
        point.name for point in entry_points(group="attnverify.backends") if point.name not in OURS
    ]
    questions = (*QUESTIONS, *map(backend, (*OURS, *named)))
    print_folded((describe_installation(), *machine(), *platforms()))
    with ThreadPoolExecutor(max_workers=count_cores()) as pool:
        answers = []
        for answer in pool.map(ask_in_subprocess, questions):
            answers.append(answer)
            print_folded(answer.lines())
    print_folded(["", *verdict(answers)])
    return 1 if blocking_problems(answers) else 0


def machine() -> Iterator[str]:
    """Say what this machine is, as far as the standard library knows."""
    found = {
        "python": f"{platform.python_version()} on {platform.platform()}",
        "cores": str(count_cores()),
        "memory": describe_memory(),
    }
    found["gpu"] = (
        "; ".join(gpu_descriptions())
        or "none that nvidia-smi knows of: kernels run on the PTX machine; of our own, Triton is "
        "interpreted as well and CUDA C++ compiled for the processor"
    )
    return (f"{'':<9}{name:<20}{words}" for name, words in found.items() if words)


def platforms() -> Iterator[str]:
    """Say what is tested, and what is only expected to work."""
    return (f"{'':<9}{name:<20}{words}" for name, words in PLATFORMS.items())


def count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_memory() -> str:
    try:
        found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    except OSError:
        return ""
    return f"{int(found[1]) / 2**20:.1f} GiB free" if found else ""


# Asking


def ask_in_subprocess(question: Question) -> Answer:
    """Ask in a process of its own, whatever may happen there."""
    command = (
        [shutil.which(question.ask) or "", "--version"]
        if question.program
        else [sys.executable, "-c", START + question.ask, json.dumps(sys.path)]
    )
    if not command[0]:
        return Answer(question, "missing", "no such program on the path")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Answer(question, "broken", f"no answer in {SECONDS:g} s")
    except OSError as error:
        return Answer(question, "broken", str(error))
    return interpret_answer(question, done.returncode, done.stdout.strip(), done.stderr.strip())


START = (
    "import json, sys, warnings; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "warnings.simplefilter('ignore')\n"
)


def interpret_answer(question: Question, status: int, said: str, complained: str) -> Answer:
    """
    Decide what an answer means: a module that is not there is missing, everything else that fails
    is broken.
    """
    last = (complained.splitlines() or ["no word"])[-1].strip()[:200]
    if status < 0:
        return Answer(
            question,
            "broken",
            f"it ends the process: signal {-status} ({signal.Signals(-status).name})",
        )
    if status and (absent := ABSENT.fullmatch(last)):
        return Answer(
            question, "missing", f"the package {absent[1].partition('.')[0]} is not installed"
        )
    if status and last.startswith("missing: "):
        return Answer(question, "missing", last.removeprefix("missing: "))
    if status or not said:
        return Answer(
            question,
            "broken",
            last.removeprefix("broken: ")
            if status
            else "it ends the process before it has answered",
        )
    lines = said.splitlines()
    return Answer(question, "ok", (lines[0] if question.program else lines[-1])[:160])


ABSENT = re.compile(
    r"(?:ModuleNotFoundError: No module named|importlib.metadata.PackageNotFoundError: No package "
    r"metadata was found for) '?([\w.-]+)'?"
)


# The verdict


def blocking_problems(answers: list[Answer]) -> list[str]:
    """
    Say why the main job cannot run here, one line each: what is needed and not there, or a backend
    of ours that is broken.
    """
    ours = [
        answer for answer in answers if answer.question.name in {f"backend {name}" for name in OURS}
    ]
    found = [
        f"{a.question.name} is {a.state}: {a.words}"
        for a in answers
        if a.question.needed and a.state != "ok"
    ]
    found += [f"{a.question.name} is broken: {a.words}" for a in ours if a.state == "broken"]
    return found or (
        [] if any(a.state == "ok" for a in ours) else ["no backend of the project can run"]
    )


def verdict(answers: list[Answer]) -> Iterator[str]:
    """Write the last lines: can the main job run, on which backends, and what to do next."""
    if found := blocking_problems(answers):
        yield "FAILED: the main job (pytest -m differential) cannot run here:"
        yield from (f"  {line}" for line in found)
        yield "next: pip install -e '.[test]' -c constraints.txt, then attnverify doctor"
        return
    names = [
        a.question.name.removeprefix("backend ")
        for a in answers
        if a.question.name.startswith("backend ") and a.state == "ok"
    ]
    yield f"The main job (pytest -m differential) can run here, on {', '.join(names)}."
    yield "next: attnverify run my_kernel.py"
