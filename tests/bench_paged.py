"""Caches in pages against every peer: `pytest --benchmark-only tests/bench_paged.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "paged"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
