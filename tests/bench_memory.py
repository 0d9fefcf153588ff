"""Memory against every peer: `pytest --benchmark-only tests/bench_memory.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "memory"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
