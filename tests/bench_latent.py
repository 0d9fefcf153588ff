"""Attention to a latent against every peer: `pytest --benchmark-only tests/bench_latent.py`."""

import pytest

from benchmarks.races.recorded import replayed

CHAPTER = "latent"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)
