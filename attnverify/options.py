"""
The options of ``attnverify run``, which are those that the plugin adds to pytest; and the words
that help and completion need of them.
"""

import os
from typing import Any

from attnverify.precision import DTYPES

PROFILES = {"quick": 20, "default": 100, "thorough": 2000}
"""Cases for each cell."""

FAILURES = ".attnverify/failures"
"""Where failures are recorded unless another place is named."""

OPTIONS: dict[str, dict[str, Any]] = {
    "--backend": {
        "action": "append",
        "metavar": "NAME_OR_PATH",
        "help": "backend to judge: a module, a package or a file; repeatable (default: numpy_ref, "
        "torch_impl, cupy_impl)",
    },
    "--op": {
        "action": "append",
        "metavar": "OPERATION",
        "help": "judge this operation alone; repeatable (attnverify list names them)",
    },
    "--dtype": {
        "action": "append",
        "choices": DTYPES,
        "help": "judge in this dtype alone; repeatable",
    },
    "--profile": {
        "choices": tuple(PROFILES),
        "default": "default",
        "help": "cases for each cell: "
        + ", ".join(f"{name} {cases}" for name, cases in PROFILES.items()),
    },
    "--known-failures": {
        "metavar": "FILE",
        "help": "known failures (default: the file beside each backend's file)",
    },
    "--report": {
        "metavar": "FILE",
        "help": "write the report as one page of HTML that needs nothing beside it",
    },
    "--report-json": {
        "metavar": "FILE",
        "help": "write every tally as JSON (attnverify page makes the page of it later)",
    },
    "--seed": {"default": "0", "metavar": "N", "help": 'seed of the draws, or "random"'},
    "--isolate": {
        "choices": ("paths", "all", "none"),
        "default": "paths",
        "help": "who gets a process of its own (default: paths)",
    },
    "--case-seconds": {
        "type": float,
        "default": 60.0,
        "metavar": "S",
        "help": "time limit of a case in such a process (default: 60)",
    },
    "--memory": {
        "type": int,
        "default": 0,
        "metavar": "MB",
        "help": "its memory limit (default: three quarters of what is free)",
    },
    "--score-json": {"metavar": "FILE", "help": "write the kill score of pytest -m faults as JSON"},
    "--failures": {
        "default": FAILURES,
        "metavar": "DIR",
        "help": "where failures are recorded and replayed from",
    },
}

CAMPAIGN: dict[str, dict[str, Any]] = {
    "--hours": {
        "type": float,
        "default": 1.0,
        "metavar": "H",
        "help": "how long (default: 1); 0.0167 is a minute",
    },
    "--workers": {
        "type": int,
        "default": os.cpu_count() or 1,
        "metavar": "N",
        "help": "processes here (default: as many as cores)",
    },
    "--address": {
        "metavar": "tcp://HOST:PORT",
        "help": "the scheduler of workers that run already",
    },
    **{
        name: OPTIONS[name]
        for name in (
            "--backend",
            "--op",
            "--dtype",
            "--known-failures",
            "--report",
            "--report-json",
            "--failures",
        )
    },
    "--seed": OPTIONS["--seed"]
    | {"default": "random", "help": "of the first draws (default: a random one, which is told)"},
    "--isolate": OPTIONS["--isolate"]
    | {"default": "all", "help": "who gets a process of its own (default: all)"},
    **{name: OPTIONS[name] for name in ("--case-seconds", "--memory")},
}
"""The options of ``attnverify campaign``; its profile is always the thorough one."""
