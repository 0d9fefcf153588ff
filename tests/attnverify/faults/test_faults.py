"""
The suite's teeth: every fault is noticed, in every dtype in which it is wrong; nothing that is
right is accused.

``pytest -m faults`` alone runs this; the kill score is printed at the end, and written with
``--attn-score-json FILE``.
"""

from typing import Any

import pytest

from attnverify.faults.registry import ALL, Fault, read_faults
from attnverify.plugin.setup import seed_of
from attnverify.verdicts.tally import Options
from tests.attnverify.faults.controls.registry import read_controls
from tests.attnverify.faults.kill_score import dtypes_of, score_fault

FAULTS, CONTROLS = read_faults(), read_controls()

pytestmark = pytest.mark.faults


def cases(faults: dict[str, Fault], dtypes: Any) -> list[Any]:
    """
    Those of one operation and dtype in one xdist worker: what is expected of a recipe is computed
    once for all of them.
    """
    return [
        pytest.param(
            fault,
            dtype,
            id=f"{fault.name}-{dtype}",
            marks=[
                pytest.mark.xdist_group(f"{fault.operation.name}-{dtype}"),
                *([] if dtype == first(dtypes(fault)) else [pytest.mark.every_dtype]),
            ],
        )
        for fault in sorted(faults.values(), key=lambda fault: fault.operation.name)
        for dtype in dtypes(fault)
    ]


def first(dtypes: tuple[str, ...]) -> str:
    """The dtype in which a fault is looked at with each commit; the others have a marker."""
    return "float32" if "float32" in dtypes else dtypes[0]


def harmless(fault: Fault) -> tuple[str, ...]:
    """The dtypes whose own rounding hides a fault."""
    return tuple(dtype for dtype in fault.operation.dtypes if dtype not in dtypes_of(fault))


@pytest.fixture
def score(pytestconfig: pytest.Config, record_property: Any) -> Any:
    def run(fault: Fault, dtype: str) -> dict[str, Any]:
        entry = score_fault(
            fault, dtype, Options(pytestconfig.getoption("attn_profile"), seed_of(pytestconfig))
        )
        record_property("score", entry)
        return entry

    return run


@pytest.mark.parametrize(("fault", "dtype"), cases(FAULTS, dtypes_of))
def test_a_fault_is_noticed(fault: Fault, dtype: str, score: Any) -> None:
    entry = score(fault, dtype)
    assert entry["killed"], (
        f"{fault.name} survives {entry['cases']} cases in {dtype}: {fault.words}; revealed by "
        f"{fault.reveals}"
    )


@pytest.mark.parametrize(("fault", "dtype"), cases(FAULTS, harmless))
def test_what_rounding_hides_is_not_noticed_either(fault: Fault, dtype: str, score: Any) -> None:
    entry = score(fault, dtype)
    assert not entry["killed"], f"wrong_in of {fault.name} lacks {dtype}: {entry['words']}"


@pytest.mark.parametrize(
    ("control", "dtype"), cases(CONTROLS, lambda control: control.operation.dtypes)
)
def test_a_control_is_accepted(control: Fault, dtype: str, score: Any) -> None:
    entry = score(control, dtype)
    assert not entry["killed"], (
        f"{control.name} is accused in {dtype} ({entry['column']}, case {entry['cases']}): "
        f"{entry['words']}"
    )


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 95 and len(CONTROLS) >= 25
    assert {dtype for fault in FAULTS.values() for dtype in dtypes_of(fault)} == {*ALL, "bool"}
