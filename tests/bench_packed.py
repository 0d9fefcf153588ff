"""Sequences laid end to end against every peer: `pytest --benchmark-only tests/bench_packed.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "packed"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
