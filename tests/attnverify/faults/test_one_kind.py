"""
The quick profile shows each kind of case that one fault hangs on, whatever else a file refuses:
what is refused is replaced. Here with one seed; :mod:`one_kind_seen` records twenty.
"""

import json

import pytest

from attnverify import ROOT
from attnverify.verdicts import shown
from attnverify.verdicts.search import Search
from tests.attnverify.faults.one_kind import FAULTS, OneKind
from tests.attnverify.faults.one_kind_seen import ADAPTERS, is_seen

pytestmark = pytest.mark.faults


@pytest.mark.usefixtures("real_calls_are_judged")
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.operation}: {fault.name}")
def test_what_one_kind_of_case_reveals_the_quick_profile_sees(
    fault: OneKind, adapter: str, tmp_path: str
) -> None:
    assert is_seen(fault, ADAPTERS[adapter], 0, str(tmp_path))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_without_the_required_kinds_a_fault_is_not_seen(
    adapter: str, tmp_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "required_cases", lambda operation: ())
    monkeypatch.setattr(Search, "replace_fixed", lambda search, shown: None)
    assert not is_seen(FAULTS[0], ADAPTERS[adapter], 0, str(tmp_path))


def test_twenty_seeds_saw_each_of_these_faults() -> None:
    told = json.loads((ROOT / "docs/data/one_kind.json").read_text())
    assert told["seeds"] == 20
    assert told["faults"] == len(FAULTS) >= 40
    assert told["adapters"] == [*ADAPTERS]
    assert not told["unseen"]
