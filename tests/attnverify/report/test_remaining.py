"""How long a run takes yet, by what small and large calls have cost so far."""

from typing import Any

import pytest

from attnverify.backends.loader import load
from attnverify.report.live import remaining
from attnverify.report.live.remaining import Calls, Remaining, advise, planned_recipes, size_of
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
    """What is told while calls cost so many seconds, and so many for each pair of large ones."""
    left, told = Remaining(asked, QUICK), list[Any]()
    for name, cell in asked.items():
        left.begin(name)
        for recipe in planned_recipes(cell, QUICK):
            left.call(recipe.sizes)
            told.append((left.seconds(), clock.now))
            size = size_of(recipe.sizes)
            times = 2 if cell.aspect == "gradients" else 1
            clock.now += times * (call if size < remaining.LARGE else pair * size)
        left.end(name)
    return [(seconds, clock.now - at) for seconds, at in told if seconds is not None]


@pytest.mark.usefixtures("real_calls_are_judged")
@pytest.mark.parametrize(("call", "pair"), [(0.5, 1e-7), (0.001, 1e-5)], ids=["small", "large"])
def test_it_is_near_once_it_is_told(
    call: float, pair: float, asked: dict[str, Cell], clock: Clock
) -> None:
    """It said that 35 seconds were left of 105: of large calls nothing was known yet."""
    told = estimates(asked, clock, call, pair)
    assert len(told) > 40
    assert all(left / 2 < seconds + 10 < 2 * (left + 10) for seconds, left in told)


def test_nothing_is_told_of_large_calls_before_one_was_made() -> None:
    small, large = [1] * 20, [1] * 20 + [remaining.LARGE]
    calls = Calls()
    calls.add(1, 0.1, 20)
    assert calls.cost(small, calls, 1.0) == pytest.approx(2.0)
    assert calls.cost(large, calls, 1.0) is None
    calls.add(2 * remaining.LARGE, 6.0, 1)
    assert calls.cost(large, calls, 1.0) == pytest.approx(2.0 + 3.0)
    assert Calls().cost(large, calls, 3.0) == pytest.approx(15.0)


def test_what_is_planned_and_was_not_made_is_not_waited_for(
    asked: dict[str, Cell], clock: Clock
) -> None:
    """Of a Triton kernel, which has no large calls without a GPU, nothing was ever told."""
    left, values = Remaining(asked, QUICK), [x for x in asked if asked[x].aspect == "values"]
    plans = {x: [1] * 20 + [remaining.LARGE] for x in values}
    left.left = {x: asked[x] for x in values}
    left.plans = {remaining.key_of(asked[x]): plans[x] for x in values}
    left.begin(values[0])
    for _ in range(21):
        left.call({"N": 1, "M": 1})
        clock.now += 0.1
    assert left.seconds() is None
    left.end(values[0])
    assert left.seconds() == pytest.approx(2.1, 0.1)


def test_what_takes_long_is_told_and_no_estimate(asked: dict[str, Cell], clock: Clock) -> None:
    left = Remaining(asked, QUICK)
    left.begin(next(iter(asked)))
    for _ in range(40):
        left.call({"N": 1, "M": 1})
        clock.now += 0.1
    assert left.seconds() is not None
    clock.now += 60
    assert left.seconds() is None and left.waited() == pytest.approx(60.1)


def test_nothing_is_said_before_it_is_known(asked: dict[str, Cell]) -> None:
    assert Remaining(asked, QUICK).seconds() is None


def test_what_is_typed_for_less_is_told_of_options_that_were_not_given() -> None:
    given: dict[str, Any] = {"dtype": None, "profile": "default", "minutes": None}
    told = advise(600, given)
    assert told.startswith("about 10 minutes left; sooner: --dtype float32, or --profile quick, or")
    assert "--dtype" not in advise(600, given | {"dtype": ["float32"]})
    assert advise(600, {"dtype": ["float32"], "profile": "quick", "minutes": 5.0}) == ""
