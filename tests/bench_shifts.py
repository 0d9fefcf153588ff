"""Shifts against every peer: `pytest --benchmark-only tests/bench_shifts.py`."""

import pytest

from verify.bench.plugin import replayed

CHAPTER = "shifts"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
