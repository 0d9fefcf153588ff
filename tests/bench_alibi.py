"""ALiBi attention against every peer: `pytest --benchmark-only tests/bench_alibi.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "alibi"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
