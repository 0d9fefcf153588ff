"""
No bound is looser than it was: the inputs and the correct implementation that came closest to each
bound when it was searched (`python -m tests.rounding_variants.search`) still come as close. Of each
there are two: in half precision the closest is where nothing but the output is rounded, so another
is from elements whose bound is at least four times that (`--beyond 4`).

Who derives a bound anew, or draws other inputs for a recipe, searches again and says why the share
is smaller.
"""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from attnverify.bounds import BOUNDS
from attnverify.bounds.gradients.steps import score_gradient_error
from attnverify.bounds.layers import linear_error
from attnverify.bounds.softmax_rows import exponent_error
from attnverify.derived import today
from attnverify.precision import DTYPES
from tests import rounding_variants
from tests.rounding_variants import share_of_bound
from tests.rounding_variants.cases import case_from
from tests.rounding_variants.search import Search

CLOSE = 0.9
"""What is left of a share where exponentials of another library round otherwise."""

BY_HAND = [name for name in BOUNDS if name not in today.BOUNDS]
"""Those that are derived: tests/attnverify/derived/test_todays_bounds.py."""

ROUNDED_ALIKE = [("dequantize", "float64")]
"""One product of float64, which the reference rounds as everyone else does: no error is found."""

Told = dict[str, Any]
_file = Path(rounding_variants.__file__).parent / "witnesses.json"
WITNESSES: list[Told] = json.loads(_file.read_text())


def cell_of(told: Told) -> tuple[str, str]:
    return told["recipe"]["operation"], told["dtype"]


def name_of(told: Told) -> str:
    return "-".join([*cell_of(told), *(["inner"] if "beyond" in told else [])])


def share_now(told: Told) -> float:
    case, beyond = case_from(told), told.get("beyond", 0.0)
    return share_of_bound(case.derived, case.inputs(told["dtype"]), told["dtype"], beyond)


@pytest.mark.parametrize("told", WITNESSES, ids=name_of)
def test_a_bound_is_as_tight_as_when_its_witness_was_found(told: Told) -> None:
    assert CLOSE * told["share"] <= share_now(told) <= 1


SEARCHED = [cell for cell in product(BY_HAND, DTYPES) if cell not in ROUNDED_ALIKE]


@pytest.mark.parametrize("cell", SEARCHED, ids="-".join)
def test_every_bound_is_used_to_a_twentieth_somewhere(cell: tuple[str, str]) -> None:
    shares = [told["share"] for told in WITNESSES if cell_of(told) == cell]
    assert max(shares or [found(*cell)]) >= 0.05


def found(operation: str, dtype: str) -> float:
    """Search the share of a new operation, which has no witness yet."""
    return Search(operation, dtype).go_on(250, until=0.05).share


def modules_with(rule: Callable[..., Any]) -> Iterator[Any]:
    """The modules of bounds that call this rule by its name."""
    loaded = [module for name, module in sys.modules.items() if "attnverify.bounds" in name]
    return (module for module in loaded if vars(module).get(rule.__name__) is rule)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [exponent_error, linear_error, score_gradient_error])
def test_a_rule_three_times_as_loose_is_noticed(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[..., Any], dtype: str
) -> None:
    for module in list(modules_with(rule)):
        monkeypatch.setattr(module, rule.__name__, lambda *a, **k: three_times(rule(*a, **k)))
    told = (each for each in WITNESSES if each["dtype"] == dtype)
    assert any(share_now(each) < CLOSE * each["share"] for each in told)


def three_times(errors: Any) -> Any:
    return tuple(map(three_times, errors)) if isinstance(errors, tuple) else 3 * errors
