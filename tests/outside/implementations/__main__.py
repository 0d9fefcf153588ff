"""
Judge the adapters of the table, one after the other, as their users would::

    nice python -m tests.outside.implementations --record docs/data/implementations.json

A name or more judges these alone, in this order, and again; without one, what the file has is kept.
A package that is not installed leaves its rows out.
"""

import json
import subprocess
import sys
from argparse import ArgumentParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from attnverify import ROOT
from tests.outside.implementations.grading import grade
from tests.outside.implementations.table import ADAPTERS, TABLE, Expected
from tests.sight.stamp import stamp

STATUS = {0: "right", 1: "wrong"}
OPTIONS = ("--profile", "quick", "--dtype", "float32", "--failures", "failures")


def judge(name: str, expected: Expected) -> dict[str, object]:
    """What `attnverify run` says of one adapter, in an empty folder."""
    spec = ("--spec", str(ROOT / expected.spec)) if expected.spec else ()
    line = [sys.executable, "-m", "attnverify", "run", str(ADAPTERS / f"{name}.py"), *spec]
    with TemporaryDirectory() as folder:
        began, report = perf_counter(), Path(folder) / "report.json"
        status = subprocess.run(
            [*line, *OPTIONS, "--report-json", str(report)],
            cwd=folder,
            capture_output=True,
            timeout=900,
            check=False,
        ).returncode
        told = json.loads(report.read_text()) if report.exists() else {}
    causes = [each["cause"] for each in told.get("root_causes", ()) if each["required"]]
    return {
        "verdict": STATUS.get(status, f"status {status}"),
        "causes": causes,
        "cases": sum(each["cases"] for each in told.get("tallies", ())),
        "seconds": round(perf_counter() - began),
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    record = json.loads(given.record.read_text()) if given.record.exists() else {"kernels": {}}
    packages = {each.package: installed(each.package) for each in TABLE.values()}
    for name in given.names or [name for name in TABLE if name not in record["kernels"]]:
        expected = TABLE[name]
        if packages[expected.package] is None:
            continue
        rows = record["kernels"] | {name: judge(name, expected)}
        rows = {each: rows[each] for each in TABLE if each in rows}
        record = stamp() | {"profile": "quick", "dtype": "float32"}
        record |= {"packages": packages, **grade(rows), "kernels": rows}
        given.record.write_text(json.dumps(record, indent=1) + "\n")
        print(name, expected.verdict, rows[name]["verdict"], rows[name]["causes"][:1], flush=True)


if __name__ == "__main__":
    main()
