"""Numbers of eight bits against every peer: `pytest --benchmark-only tests/bench_quantized.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "quantized"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
