"""Masks against every peer: `pytest --benchmark-only tests/bench_masks.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "masks"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
