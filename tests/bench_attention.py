"""
Plain and additive attention against every peer: `pytest --benchmark-only tests/bench_attention.py`.
"""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "attention"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
