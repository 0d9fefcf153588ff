"""
The run's :class:`~attnverify.session.Verification`, made from pytest's options: which backends, in
which processes, with which known failures.
"""

import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attnverify.device_assignment import assign_device, show_device
from attnverify.failures.record import forget_what_was_read
from attnverify.isolation.supervisor import runs_in_own_process
from attnverify.isolation.worker_process import Limits, Worker
from attnverify.machine import count_processors, share_out_processors
from attnverify.plugin import BACKENDS
from attnverify.plugin.journal import open_journal
from attnverify.plugin.state import STATE, is_worker, named_on_the_line, sources_of
from attnverify.report.json_report import REPORTS
from attnverify.report.terminal_colours import fold_words, terminal_width
from attnverify.report.waiting import waiting
from attnverify.session import (
    Verification,
    backends_of,
    check_inputs,
    known_failures,
    mark_second_opinions,
    sources_on_machine,
)
from attnverify.specified import register_file
from attnverify.verdicts.tally import Options


def verification_of(config: pytest.Config) -> Verification:
    """Find the run's Verification, made when the first differential test asks for it."""
    state = config.stash[STATE]
    if state.verification is None:
        try:
            state.verification = build_verification(config)
        except ValueError as error:
            words = fold_words(str(error), terminal_width(sys.stderr), "ERROR: ")
            raise pytest.UsageError(words) from None
        finally:
            waiting.end()
    return state.verification


def build_verification(config: pytest.Config) -> Verification:
    """
    Read the options and load the backends. Raises ValueError for an option that is wrong.
    """
    began, option, sources = time.time(), config.getoption, sources_of(config)
    if not sources:
        raise ValueError(
            "differential tests: wanted a backend to judge, got none: name one by "
            f"--attn-backend=FILE, or by {BACKENDS} in pytest's configuration"
        )
    share_out_processors(processes_of(config))
    if (device := option("attn_device")) and not is_worker(config):
        show_device(device)
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        assign_device(int(worker.removeprefix("gw")))
    forget_what_was_read()  # in an earlier run of this process, in another directory perhaps
    for name, path in report_paths(config).items():
        if path and not Path(path).absolute().parent.is_dir():
            raise ValueError(f"{name}: wanted a file in a directory that exists, got {path}")
    known = known_failures(option("attn_known_failures"), sources)
    operations, dtypes = (tuple(option(name) or ()) for name in ("attn_op", "attn_dtype"))
    specified = [name for path in option("attn_spec") or () for name in register_file(path)]
    operations = operations or tuple(specified)
    inputs = str(Path(option("attn_inputs")).absolute()) if option("attn_inputs") else ""
    if inputs and (own := check_inputs(inputs, operations, dtypes)):
        dtypes = (own,)
    failures = str(option("attn_failures"))
    options = Options(option("attn_profile"), seed_of(config), failures, inputs=inputs)
    workers = workers_of(config, sources)
    backends = list(backends_of(sources, workers))
    if not (inputs or device):
        added = sources_on_machine(backends, operations, options.profile)
        workers |= (more := workers_of(config, [x for x in added if x not in sources]))
        backends += backends_of([*more], more)
        mark_second_opinions(backends)
    gc.freeze()  # what is loaded by now stays: the collector need not look at it again and again
    run = Verification(backends, operations, dtypes, options, known, workers, began=began)
    run.require, run.allow_weak = option("attn_require"), option("attn_allow_weak")
    journal = open_journal(config, sources, settings_of(config, run))
    if journal is not None:
        config.stash[STATE].journal = journal
        run.find_kept, run.keep = journal.find, journal.add
    return run


def settings_of(config: pytest.Config, run: Verification) -> list[Any] | None:
    """
    List what a result depends on beside files and versions; None for a run that does not name its
    backends itself, and has no journal.
    """
    option, inputs = config.getoption, run.options.inputs
    if not named_on_the_line(config) or option("collectonly"):
        return None
    limits = [option(f"attn_{name}") for name in ("case_seconds", "memory", "isolate", "device")]
    return [run.options, limits, run.known_failures, Path(inputs).read_bytes() if inputs else b""]


def processes_of(config: pytest.Config) -> int:
    """
    Count how many processes the processors are shared out among: the workers of pytest-xdist. A
    single process takes one of them: on small cases a library's threads only wait for each other.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0))
    return workers or len(getattr(config.option, "tx", None) or ()) or count_processors()


def report_paths(config: pytest.Config) -> dict[str, str | None]:
    """Tell where each report is to be written."""
    return {
        name: config.getoption(f"attn_{name.removeprefix('--').replace('-', '_')}")
        for name in REPORTS
    }


def workers_of(config: pytest.Config, sources: list[str]) -> dict[str, Worker]:
    """
    Start a process for each backend that gets one. Under pytest-xdist what the controller was told
    does for everyone.
    """
    option = config.getoption
    limits = Limits(option("attn_case_seconds"), option("attn_memory"))
    told = json.loads(getattr(config, "workerinput", {}).get("attn_backends", "{}"))
    return {
        source: Worker(source, limits, told.get(source))
        for source in sources
        if runs_in_own_process(source, option("attn_isolate"))
    }


def seed_of(config: pytest.Config) -> int:
    """Choose the same number in every xdist worker."""
    if is_worker(config):
        return int(config.workerinput["attn_seed"])  # type: ignore[attr-defined]
    asked = config.getoption("attn_seed")
    if asked == "random":
        config.option.attn_seed = asked = str(random.SystemRandom().randrange(2**31))
    return int(asked)
