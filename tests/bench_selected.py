"""Chosen blocks against every peer: `pytest --benchmark-only tests/bench_selected.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "selected"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
