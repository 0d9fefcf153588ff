"""
The steps of ``attnverify gpu-report`` as tests of the device that is here: ``pytest -m gpu``.

The command runs the same steps, each in a process of its own, side by side and within its time, and
keeps what they measured.
"""

from importlib import import_module

import pytest

from attnverify.gpu_report import runner
from attnverify.gpu_report.context import StepContext

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def this_device(step: str) -> StepContext:
    """The GPU, with all that a step asks of it; or the CPU, in a hurry."""
    gpu = import_module("torch").cuda.is_available()
    return StepContext("cuda" if gpu else "cpu", quick=not gpu, seconds=runner.LIMITS[step])


@pytest.mark.parametrize("step", runner.LIMITS)
def test_a_step_passes_on_this_device(step: str) -> None:
    told = runner.run(step, this_device(step))
    if told["verdict"] == "not run":
        pytest.skip(told["reason"])
    assert told["verdict"] == "passed", told["reason"]
