"""Relative attention against every peer: `pytest --benchmark-only tests/bench_relative.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "relative"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
