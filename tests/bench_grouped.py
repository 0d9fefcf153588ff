"""Merges and the like against every peer: `pytest --benchmark-only tests/bench_grouped.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "grouped"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
