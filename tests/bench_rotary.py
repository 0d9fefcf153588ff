"""Rotary positions against every peer: `pytest --benchmark-only tests/bench_rotary.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "rotary"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
