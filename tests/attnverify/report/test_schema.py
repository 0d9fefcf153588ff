"""The JSON report: what it holds is described by a schema with a version, and strict JSON."""

import copy
import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from attnverify.failures.finding import Finding
from attnverify.failures.record import FailureRecord
from attnverify.interface import Report
from attnverify.report.json_report import SCHEMA, VERSION, json_text, read_report
from attnverify.verdicts.tally import CellResult
from tests.support.run_attnverify import verify

jsonschema = pytest.importorskip("jsonschema", reason="the extra test brings it")

VERSIONS = {
    1: "db92b2505167",
    2: "f8800d6a37fc",
    3: "f71199f40f12",
    4: "0131e0666707",
    5: "e8fbfcfcdb06",
    6: "d67a085ae240",
    7: "6e0fcd3113e3",
    8: "284b2c23b5a7",
    9: "a8983b6d4ad7",
    10: "5a3fa78cd1cc",
    11: "ca32a2f7a398",
    12: "7af9ed5f88c8",
    13: "b21ae9e7e99a",
    14: "1e7fc65d97ba",
    15: "f05ed6e2442d",
    16: "c57dcfddcb82",
    17: "c3e955ef789c",
}
"""The checksum of each version: a schema that is changed has a new one, and a line here."""

NAN = """\
import numpy as np

PRECISION = {"slack": 1e30}


def shift_right(x):
    return x * np.nan


def scaled_dot_product_score(query, key):
    return query @ key.swapaxes(-1, -2) / query.dtype.type(query.shape[-1] ** 0.5)


def causal_mask(N, M):
    raise NotImplementedError("not yet")


def rel_shift(x):
    return 0 * x
"""
KNOWN = "rel_shift * values : not written yet\n"
OPERATIONS = ("shift_right", "scaled_dot_product_score", "causal_mask", "rel_shift")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with every verdict in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        Path("mine.py").write_text(NAN)
        Path("mine.known-failures.txt").write_text(KNOWN)
        chosen = [word for name in OPERATIONS for word in ("--op", name)]
        line = ("mine.py", "absent_backend.py", *chosen, "--profile", "quick")
        verify("run", *line, "--dtype", "float32", "--report-json", "report.json")
        return Path("report.json").read_text(encoding="utf-8")


def errors(report: Any, schema: dict[str, Any]) -> list[str]:
    found = jsonschema.Draft202012Validator(schema).iter_errors(report)
    return [f"{error.json_path}: {error.message}" for error in found]


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(f"no JSON: {word}")

    return json.loads(text, parse_constant=refuse)


def test_the_report_of_a_run_is_what_the_schema_says(text: str, schema: dict[str, Any]) -> None:
    report = strict(text)
    assert errors(report, schema) == []
    verdicts = {tally["verdict"] for tally in report["tallies"]}
    assert verdicts == {*schema["$defs"]["verdict"]["enum"]}


def test_the_version_is_that_of_the_schema(text: str, schema: dict[str, Any]) -> None:
    assert schema["properties"]["version"]["const"] == strict(text)["version"] == VERSION


def test_a_schema_that_is_changed_has_a_new_version(schema: dict[str, Any]) -> None:
    digest = hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:12]
    assert VERSIONS[VERSION] == digest


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [
        (CellResult, "tally", set[str]()),
        (Finding, "finding", set[str]()),
        (FailureRecord, "record", {"hash", "words", "replay", "program"}),
    ],
    ids=["tally", "finding", "record"],
)
def test_the_schema_knows_every_field(
    kind: Any, name: str, more: set[str], schema: dict[str, Any]
) -> None:
    assert {field.name for field in fields(kind)} | more == schema["$defs"][name][
        "properties"
    ].keys()


def test_a_report_is_read_back_as_it_was_written(text: str) -> None:
    report = read_report(text)
    assert read_report(json_text(report)) == report
    assert Report.from_json(text).verdict("shift_right", "float32") == "failed"


def test_numbers_that_json_does_not_have_are_words() -> None:
    plain = {"tallies": [{"budget": float("inf")}], "other": [float("nan")]}
    assert strict(json_text(plain)) == {"tallies": [{"budget": "inf"}], "other": ["nan"]}
    assert read_report(json_text(plain))["tallies"] == [{"budget": float("inf")}]


@pytest.mark.parametrize("given", ["[]", "{}", "nothing", '{"tallies": [], "version": 99}'])
def test_what_is_no_report_is_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        Report.from_json(given)
    (tmp_path / "report.json").write_text(given)
    assert verify("page", str(tmp_path / "report.json")).status == 2


# sabotage: what the schema must notice


@pytest.mark.parametrize(
    "change",
    [
        lambda report: report.pop("tallies"),
        lambda report: report.update(version=VERSION + 1),
        lambda report: report.update(mood="good"),
        lambda report: report["tallies"][0].pop("verdict"),
        lambda report: report["tallies"][0].update(verdict="green"),
        lambda report: report["tallies"][0].update(cases=-1),
        lambda report: next(t for t in report["tallies"] if t["findings"])["findings"][0].update(
            x=1
        ),
    ],
)
def test_the_schema_notices_a_wrong_report(change: Any, text: str, schema: dict[str, Any]) -> None:
    report = copy.deepcopy(strict(text))
    change(report)
    assert errors(report, schema) != []
