"""
The workers of a campaign: processes of this machine, or those of a scheduler that runs already.

Nothing is shared with the workers of others. The backends' files, and what lies beside them, go to
each by a plugin of dask's workers, which one that joins later gets as well; in what comes back the
worker's folders are told as those of here. Which versions they have is asked before anything is
judged.

Started here, everything listens on the loopback alone. For a scheduler of others dask's own
configuration says how it is spoken to, its certificates for tls:// among it.
"""

import argparse
import io
import json
import logging
import os
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnverify.backends.source import PROJECT_BACKENDS, parse_source
from attnverify.campaign.work_units import Outcome, WorkUnit
from attnverify.verdicts.journal import describe_versions
from attnverify.verdicts.tally import CellResult

ENGINE = "distributed"
TRIES = 1
"""
So often a unit runs again because its worker is gone, and then once more as often, for it may have
been a neighbour's fault.
"""

MOST = 64 * 2**20
"""Bytes that are sent to each worker, at most."""

NO_CODE = ("__pycache__", "build", "dist", "node_modules")
"""Folders that are not sent; hidden ones, and environments of Python, are not either."""


class Unreachable(Exception):
    """A scheduler does not answer, or its workers cannot judge."""


@contextmanager
def dask_client(chosen: argparse.Namespace) -> Iterator[Any]:
    """
    Start a client of the workers, which are started here unless there is a scheduler already.
    Raises Unreachable.
    """
    distributed, dask = import_module(ENGINE), import_module("dask")
    dask.config.set(
        {
            "distributed.scheduler.allowed-failures": TRIES,
            "distributed.comm.timeouts.connect": "60s",
        }
    )
    cluster: Any = chosen.address
    if not cluster:
        cluster = distributed.LocalCluster(
            n_workers=chosen.workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        )
    try:
        client = distributed.Client(cluster, timeout=CONNECT if chosen.address else "60s")
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise Unreachable(f"--address: no scheduler answers at {cluster} ({error})") from None
    for name in ("distributed", "distributed.client"):  # what they would say is told in our words
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield client
    finally:
        client.close()
        if not chosen.address:
            cluster.close()


CONNECT = 30
"""Seconds in which a scheduler must have answered."""


def is_connected(client: Any) -> bool:
    """Tell whether the scheduler is there; a client of a scheduler that ended tries for long."""
    return bool(client.status == "running")


# What is sent


@dataclass(frozen=True)
class Sent:
    """
    The backends' files on their way: the name of their folder on a worker, and of each backend the
    folder it lies in here and the number of that folder there. Without a name nothing was sent.
    """

    name: str = ""
    places: tuple[tuple[str, str, int], ...] = ()

    def place_of(self, source: str) -> tuple[str, int] | None:
        """Find the folder that a backend lies in here, and its number."""
        return next(((here, number) for name, here, number in self.places if name == source), None)


def send_files(client: Any, sources: Iterable[str]) -> Sent:
    """
    Send the files of the backends to all workers, those that join later too. Raises ValueError
    where they are too large.
    """
    places, roots = [], list[str]()
    for source in sources:
        if root := folder_of(source):
            if root not in roots:
                roots.append(root)
            places.append((source, root, roots.index(root)))
    if not places:
        return Sent()
    archive = archive_of(roots)
    name = f"attnverify-{sha256(archive).hexdigest()[:12]}"
    from attnverify.campaign.files_plugin import SentFiles

    client.register_plugin(SentFiles(archive, name))
    return Sent(name, tuple(places))


def take_back(client: Any, sent: Sent) -> None:
    """Remove from the workers what was sent; those of a scheduler that has ended keep it."""
    if sent.name and is_connected(client):
        client.unregister_worker_plugin(sent.name)


def folder_of(source: str) -> str:
    """
    Name the folder that a backend's file lies in, or that its module is imported from where that is
    this one; "" for what is installed on workers as it is here.
    """
    asked = parse_source(source)
    if asked.place in PROJECT_BACKENDS:
        return ""
    if asked.is_path:
        return str(Path(asked.place).absolute().parent)
    try:
        found = find_spec(asked.place.partition(".")[0])
    except (ImportError, ValueError):
        return ""
    file = found.origin if found else None
    return os.getcwd() if file and Path.cwd() in Path(file).parents else ""


def archive_of(roots: list[str]) -> bytes:
    """Pack folders, each below its number. Raises ValueError where they are too large."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        size = 0
        for number, root in enumerate(roots):
            for file in files_below(root):
                size += file.stat().st_size
                if size > MOST:
                    raise ValueError(
                        f"--backend: wanted a folder of at most {MOST >> 20} MB to send to the "
                        f"workers, got {root} with more; put the file and what it needs into a "
                        "folder of their own"
                    )
                name = f"{number}/{file.relative_to(root).as_posix()}"
                archive.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()


def files_below(root: str) -> Iterator[Path]:
    """Yield the files of a folder in order, without what is hidden, built or an environment."""
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(
            name
            for name in inner
            if not name.startswith(".")
            and name not in NO_CODE
            and not Path(folder, name, "pyvenv.cfg").exists()
        )
        yield from (
            path
            for name in sorted(files)
            if not name.startswith(".") and (path := Path(folder, name)).is_file()
        )


def as_there(unit: WorkUnit, sent: Sent, scratch: str) -> WorkUnit:
    """Rewrite a unit for a worker: its backend lies below the folder that was sent there."""
    place = sent.place_of(unit.source)
    if place is None:
        return unit
    asked, root = parse_source(unit.source), Path(scratch, sent.name, str(place[1]))
    if not asked.is_path:
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        return unit
    file = root / Path(asked.place).absolute().name
    return replace(unit, source=f"{file}{unit.source[len(asked.place) :]}")


def as_here(outcome: Outcome, unit: WorkUnit, there: WorkUnit) -> Outcome:
    """Rewrite what comes of a unit: the worker's folders are told as those of here."""
    if there.source == unit.source:
        return replace(outcome, unit=unit)
    theirs, mine = parse_source(there.source).place, parse_source(unit.source).place
    folders = (
        f"{Path(theirs).parent}/",
        f"{Path(mine).parent}/" if Path(mine).is_absolute() else "",
    )
    result = outcome.result.as_dict()
    text = json.dumps([result, outcome.scripts])
    for old, new in ((theirs, mine), folders):
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    plain, scripts = json.loads(text)
    told = CellResult.from_dict(plain)
    names = {
        old.record.program: new.record.program
        for old, new in zip(outcome.result.findings, told.findings, strict=True)
        if old.record and new.record
    }
    renamed = {names.get(name, name): script for name, script in scripts.items()}
    return replace(outcome, result=told, scripts=renamed, unit=unit)


# Which versions they have


def compare_versions(client: Any, asked: Iterable[str] | None = None) -> list[str]:
    """
    Say which versions differ between this machine and the workers. Raises Unreachable where one
    cannot judge at all.
    """
    told = client.run(
        describe_versions, workers=list(asked) if asked is not None else None, on_error="return"
    )
    without = {address: error for address, error in told.items() if isinstance(error, Exception)}
    for address, error in without.items():
        raise Unreachable(f"worker {address} cannot judge: {' '.join(str(error).split())}")
    return describe_differences(describe_versions(), told)


def describe_differences(own: dict[str, str], told: dict[str, dict[str, str]]) -> list[str]:
    """Write one line for each package of which not all have the version of here."""
    lines = []
    for name, here in own.items():
        others: dict[str, list[str]] = defaultdict(list)
        for address, versions in told.items():
            if versions.get(name, "") != here:
                others[versions.get(name, "")].append(address)
        if others:
            there = "; ".join(
                f"{version or 'none'} on {', '.join(addresses)}"
                for version, addresses in others.items()
            )
            lines.append(f"warning: {name} differs: {here or 'none'} here, {there}")
    return lines
