"""
The options of a run: one table, from which pytest's ``--attn-NAME`` and the plain ``--NAME`` of
``attnverify run`` are made, and what may follow each of them.

Nothing here imports more than the standard library: every pytest of an environment in which
attnverify is installed reads this table.
"""

import ast
import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnverify.device_assignment import TARGETS
from attnverify.field_names import FIRST, IN_THE_FIELD
from attnverify.precision import DTYPES

PROFILES = {"quick": 20, "default": 100, "thorough": 2000}
"""Cases for each cell."""

SEEKING = {"quick": 10.0, "default": 30.0, "thorough": 60.0}
"""Seconds for which a run looks for the change of a file that makes right what nothing explains."""

STATE_FOLDER = ".attnverify"
"""What a run leaves behind; it ignores itself."""

FAILURES = f"{STATE_FOLDER}/failures"
"""Where failures are recorded unless another place is named."""

ALIASES = {
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
    "fp32": "float32",
    "f32": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
}
"""Other names of the dtypes, as the field writes them."""


def one_of(text: str, words: Iterable[str], what: str = "", more: str = "") -> str:
    """
    Return the word if it is known. Raises ValueError with what was wanted, and the nearest word;
    more: what is said where there is none.
    """
    known = tuple(words)
    if text in known:
        return text
    near = [text] if any(len(text) > 2 and text in word for word in known) else []
    near = near or difflib.get_close_matches(text, ends_of(known), n=1)
    longer = (word for word in known for part in near if part in word)
    close = near if {*near} & {*known} else sorted(longer, key=FIRST.__ne__)[:3]
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(f"wanted {what or ', '.join(known)}, got {text}{hint or more}")


def ends_of(words: Iterable[str]) -> list[str]:
    """
    List the words and what they end in, which somebody may mean by a part alone.

    >>> ends_of(["self_attention"])
    ['self_attention', 'attention']
    """
    parts = (word.split("_") for word in words)
    return list(dict.fromkeys("_".join(p[at:]) for p in parts for at in range(len(p))))


@lru_cache
def operation_names() -> tuple[str, ...]:
    """List the operations without their gradients."""
    return tuple(name for name in exported_names() if not name.endswith("_grad"))


def exported_names() -> tuple[str, ...]:
    """
    List the operations and their gradients, as the specification's package exports them. It is read
    and not imported, for names are wanted before any array library is loaded.
    """
    spec = find_spec("attnverify.spec")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return tuple(
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    )


def parse_operation(text: str, names: Callable[[], Iterable[str]] = operation_names) -> str:
    more = " (attnverify list names them)"
    word = text.lower().replace("-", "_")
    return one_of(IN_THE_FIELD.get(word, text), names(), "an operation of the catalogue", more)


def parse_listed(text: str) -> str:
    """One of the names that ``attnverify list`` prints, or a part that several have."""
    is_part = len(text) > 2 and any(text in name for name in operation_names())
    return text if is_part else parse_operation(text, exported_names)


def parse_dtype(text: str) -> str:
    return one_of(ALIASES.get(text, text), DTYPES)


def parse_profile(text: str) -> str:
    return one_of(text, PROFILES)


ISOLATION = ("paths", "all", "none")

ANSWER = ("values", "gradients")
CONTRACT = (*ANSWER, "refusals", "side effects", "hidden NaN")
REQUIRED = {"answer": ANSWER, "contract": CONTRACT, "isolation": (*CONTRACT, "isolation")}
"""The rungs of a verdict, each with the aspects in which a failure is red."""


def parse_require(text: str) -> str:
    return one_of(text, REQUIRED)


def parse_seed(text: str) -> str:
    if text != "random" and not text.isdecimal():
        raise ValueError(f'wanted a whole number or "random", got {text}')
    return text


def parse_device(text: str) -> str:
    name, _, number = text.partition(":")
    known = name in ("cpu", "cuda") and (not number or (name == "cuda" and number.isdecimal()))
    if not known and text not in TARGETS:
        raise ValueError(f"wanted cpu, cuda, cuda:N or {', '.join(TARGETS)}, got {text}")
    return text


def parse_seconds(text: str) -> float:
    """Parse a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"wanted a number above 0, got {text}")
    return number


def parse_count(text: str) -> int:
    """Parse a whole number, 0 or more."""
    if not text.isdecimal():
        raise ValueError(f"wanted a whole number, got {text}")
    return int(text)


@dataclass(frozen=True)
class Option:
    """
    An option, with a value unless ``is_flag``.

    parse   reads what was typed; raises ValueError that says what was wanted
    words   what completion offers: these words, or files where ``is_file``
    """

    name: str
    metavar: str
    help: str
    parse: Callable[[str], Any] = str
    default: str | None = None
    repeatable: bool = False
    words: Callable[[], Iterable[str]] = lambda: ()
    is_file: bool = False
    is_flag: bool = False
    short: str = ""

    @property
    def dest(self) -> str:
        """The name of its value in pytest's configuration."""
        return f"attn_{self.name.replace('-', '_')}"

    @property
    def flag(self) -> str:
        """As pytest takes it."""
        return f"--attn-{self.name}"

    def read(self, text: str) -> Any:
        """
        Read what was typed; of an option that may be repeated a list, for ``float32,float16`` is
        both. Raises ValueError that says what was wanted.
        """
        if not self.repeatable:
            return self.parse(text)
        parts = text.split(",") if tuple(self.words()) else [text]
        return [self.parse(part.strip()) for part in parts]


RUN = (
    Option(
        "backend",
        "NAME_OR_PATH",
        "backend to judge: a module, a package or a file; repeatable",
        repeatable=True,
        is_file=True,
    ),
    Option(
        "op",
        "OPERATION",
        "judge this operation alone; repeatable (attnverify list names them)",
        parse_operation,
        repeatable=True,
        words=operation_names,
    ),
    Option(
        "dtype",
        "DTYPE",
        f"judge in this dtype alone, or in a,b: {', '.join(DTYPES)} (fp16, bf16 ... too)",
        parse_dtype,
        repeatable=True,
        words=lambda: DTYPES,
    ),
    Option(
        "profile",
        "PROFILE",
        "cases at least for each cell: "
        + ", ".join(f"{name} {cases}" for name, cases in PROFILES.items()),
        parse_profile,
        "default",
        words=lambda: PROFILES,
    ),
    Option(
        "inputs",
        "FILE",
        "judge your own arrays, by argument name in a .npz or .pt, not drawn ones; with --op "
        "where the file has several operations, or with --spec",
        is_file=True,
    ),
    Option(
        "spec",
        "FILE",
        "judge by your own specification: a NumPy function with annotated axes, my_spec.py or "
        "my_spec.py:function; repeatable",
        repeatable=True,
        is_file=True,
    ),
    Option(
        "known-failures",
        "FILE",
        "known failures (default: the file beside each backend's file)",
        is_file=True,
    ),
    Option(
        "report",
        "FILE",
        "write the report as one page of HTML that needs nothing beside it",
        is_file=True,
    ),
    Option(
        "report-json",
        "FILE",
        "write every tally as JSON (attnverify page makes the page of it later); -: to standard "
        "output, and all else to standard error",
        is_file=True,
    ),
    Option(
        "require",
        "RUNG",
        "what must hold for status 0: answer (values, gradients), contract (refusals, side "
        "effects, hidden NaN too) or isolation (NaN hidden from some too); default: answer; of "
        "our own columns all",
        parse_require,
        words=lambda: REQUIRED,
    ),
    Option(
        "allow-weak",
        "",
        "a cell without a discriminating case is no failure",
        is_flag=True,
    ),
    Option(
        "device",
        "DEVICE",
        "show the backends this device alone: cpu, cuda or cuda:1; sm_80, sm_90a: none, and run a "
        "file's own Triton and CUDA kernels on the PTX machine",
        parse_device,
        words=lambda: ("cpu", "cuda", "cuda:0", "cuda:1"),
    ),
    Option(
        "minutes",
        "N",
        "begin no cell after so many minutes; those that tell most come first",
        parse_seconds,
    ),
    Option(
        "resume",
        "",
        "go on with the run of the same files, seed and profile that was broken off",
        is_flag=True,
    ),
    Option("seed", "N", 'seed of the draws, or "random" (default: 0)', parse_seed, "0"),
    Option(
        "isolate",
        "WHO",
        "who gets a process of its own: paths, all or none (default: paths)",
        lambda text: one_of(text, ISOLATION),
        "paths",
        words=lambda: ISOLATION,
    ),
    Option(
        "case-seconds",
        "S",
        "time limit of a case in such a process (default: 60)",
        parse_seconds,
        "60",
    ),
    Option(
        "memory",
        "MB",
        "its memory limit (default: three quarters of the machine's)",
        parse_count,
        "0",
    ),
    Option(
        "failures",
        "DIR",
        "where failures are recorded and replayed from",
        str,
        FAILURES,
        is_file=True,
    ),
)
"""The options of ``attnverify run``, and of pytest with their prefix."""

OPTIONS = {option.name: option for option in RUN}

CAMPAIGN = (
    Option("hours", "H", "how long (default: 1); 0.0167 is a minute", parse_seconds, "1"),
    Option(
        "workers",
        "N",
        "processes here (default: as many as cores)",
        parse_count,
        str(os.cpu_count() or 1),
        short="-n",
    ),
    Option("address", "tcp://HOST:PORT", "the scheduler of workers that run already"),
    *(
        OPTIONS[name]
        for name in ("backend", "op", "dtype", "known-failures", "report", "report-json")
    ),
    *(OPTIONS[name] for name in ("require", "allow-weak")),
    replace(
        OPTIONS["resume"],
        help="go on with the campaign of the same files and options, broken off or over",
    ),
    replace(
        OPTIONS["seed"],
        default="random",
        help="of the first draws (default: a random one, which is told)",
    ),
    replace(OPTIONS["isolate"], default="all", help="who gets a process of its own (default: all)"),
    *(OPTIONS[name] for name in ("case-seconds", "memory", "failures")),
)
"""The options of ``attnverify campaign``; its profile is always the thorough one."""
