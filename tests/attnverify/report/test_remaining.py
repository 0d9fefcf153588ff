"""How long a run takes yet: by what calls have cost so far, and falling while they go on."""

from itertools import pairwise
from typing import Any

import pytest

from attnverify.backends.loader import load
from attnverify.report.live import remaining
from attnverify.report.live.remaining import Remaining, advise, planned_recipes, size_of
from attnverify.verdicts.cell import Cell, cells
from attnverify.verdicts.tally import Options

QUICK = Options("quick")


class Clock:
    """A clock that stands still until a call takes its time."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(remaining, "time", clock)
    return clock


@pytest.fixture(scope="module")
def asked() -> dict[str, Cell]:
    found = cells([load("numpy_ref")], ("softmax",), ("float32", "float16"))
    return {cell.full_id: cell for cell in found}


def estimates(asked: dict[str, Cell], clock: Clock, call: float, pair: float) -> list[Any]:
    """What is told while calls cost so many seconds, and so many for each pair."""
    left, told = Remaining(asked, QUICK), list[Any]()
    for name, cell in asked.items():
        left.begin(name)
        for recipe in planned_recipes(cell, QUICK):
            left.call(recipe.sizes)
            told.append((left.seconds(), clock.now))
            clock.now += call + pair * size_of(recipe.sizes)
        left.end(name)
    return [(seconds, clock.now - at) for seconds, at in told if seconds is not None]


@pytest.mark.parametrize(("call", "pair"), [(0.5, 0.0), (0.1, 0.01)], ids=["calls", "pairs"])
def test_it_is_near_early_and_falls(
    call: float, pair: float, asked: dict[str, Cell], clock: Clock
) -> None:
    told = estimates(asked, clock, call, pair)
    assert len(told) > 40
    assert all(left / 2 < seconds < 2 * left for seconds, left in told[: len(told) // 2])
    assert max(later - 1.1 * before for (before, _), (later, _) in pairwise(told)) <= call


def test_noise_of_small_calls_is_not_scaled_to_large_ones(
    asked: dict[str, Cell], clock: Clock
) -> None:
    left = Remaining(asked, QUICK)
    left.begin(next(iter(asked)))
    for at in range(20):
        left.call({"N": 1 + at % 3, "M": 1})
        clock.now += 0.3 + 0.2 * (at % 2)
    call, pair = left.calls.rates()
    assert pair == 0 and 0.3 < call < 0.5


def test_what_is_known_of_calls_does_not_grow_with_their_number(
    asked: dict[str, Cell], clock: Clock
) -> None:
    """Each line of progress went through all calls so far, five times for each cell left."""
    left = Remaining(asked, QUICK)
    left.begin(next(iter(asked)))
    left.call({"N": 1, "M": 1})
    clock.now += 0.5 * 10**12
    left.call({"N": 1, "M": 1}, 10**12)
    assert left.calls.rates() == (pytest.approx(0.5), 0.0)


def test_nothing_is_said_before_it_is_known(asked: dict[str, Cell]) -> None:
    assert Remaining(asked, QUICK).seconds() is None


def test_what_is_typed_for_less_is_told_of_options_that_were_not_given() -> None:
    given: dict[str, Any] = {"dtype": None, "profile": "default", "minutes": None}
    told = advise(600, given)
    assert told.startswith("about 10 minutes left; sooner: --dtype float32, or --profile quick, or")
    assert "--dtype" not in advise(600, given | {"dtype": ["float32"]})
    assert advise(600, {"dtype": ["float32"], "profile": "quick", "minutes": 5.0}) == ""
