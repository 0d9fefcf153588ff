"""
Shifts against every peer, and the views that cost nothing:
`pytest --benchmark-only tests/bench_shifts.py`.
"""

import pytest
import torch

from attnverify.bench.measure.peak_memory import of_torch_cpu
from attnverify.torch_impl.shifts import rel_shift, shift_right, skewed, slanted
from benchmarks.races.recorded import replayed

CHAPTER = "shifts"


@pytest.mark.benchmark(timer=replayed)
def test_time(benchmark, races, entrant):
    races.keep(benchmark, *entrant)


@pytest.mark.benchmark(group="shift of a padded buffer")
@pytest.mark.parametrize("shift", [shift_right, rel_shift])
def test_a_shift_of_a_padded_buffer_is_a_view(benchmark, races, shift):
    """
    The buffer that a product writes anyway has room for the zeros: the shift then moves no byte.
    """
    N = 1024 if races.measured else 37
    buffer, first = torch.randn(8, N, N + 1), shift is rel_shift
    buffer[..., 0 if first else -1] = 0
    view = benchmark(lambda: skewed(buffer, N) if first else slanted(buffer))
    assert torch.equal(view, shift(buffer[..., 1:] if first else buffer[..., :-1]))
    copied = of_torch_cpu(
        lambda: skewed(buffer, N) if first else slanted(buffer)
    ) > 0 or not shares(view, buffer)
    benchmark.extra_info |= races.view(shift.__name__, copied)
    assert not copied


def shares(one, other):
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
