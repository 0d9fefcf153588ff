"""
The steps of ``python -m benchmarks.gpu_report`` as tests: ``pytest -m gpu`` runs them all, and
the command each in a process of its own.

What a step has measured is a property of its test, and what it could not do why it is skipped.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from benchmarks.gpu_report import external_steps, kernel_steps, pytorch_steps, sanitizer
from benchmarks.gpu_report.context import Figures, NotRun, StepContext
from benchmarks.gpu_report.programs import GIVEN
from benchmarks.gpu_report.runner import LIMITS

__all__ = ["STEPS", "test_a_step_passes_on_this_device"]

STEPS: dict[str, Callable[[StepContext], Figures]] = {
    "environment": kernel_steps.environment,
    "short": kernel_steps.run_each_kernel_once,
    "repeats": kernel_steps.check_repeatability,
    "lengths": kernel_steps.check_long_sequences,
    "large": kernel_steps.check_large_tensors,
    "graphs": pytorch_steps.check_cuda_graphs,
    "waits": pytorch_steps.check_no_synchronization,
    "recompilations": pytorch_steps.recompilations,
    "memory": pytorch_steps.memory,
    "tests": external_steps.tests,
    "suite-torch_impl": partial(external_steps.run_differential_suite, "torch_impl"),
    "suite-cupy_impl": partial(external_steps.run_differential_suite, "cupy_impl"),
    **{f"sanitizer-{tool}": partial(sanitizer.run_sanitizer, tool) for tool in sanitizer.TOOLS},
}


def this_device(step: str) -> StepContext:
    """What the command asks; else the GPU, with all that a step asks of it, or the CPU, quickly."""
    if GIVEN in os.environ:
        return StepContext(**json.loads(os.environ[GIVEN]))
    gpu = import_module("torch").cuda.is_available()
    return StepContext("cuda" if gpu else "cpu", quick=not gpu, seconds=LIMITS[step])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", LIMITS)
def test_a_step_passes_on_this_device(
    step: str, record_property: Callable[[str, Any], None]
) -> None:
    try:
        record_property("figures", json.dumps(STEPS[step](this_device(step))))
    except NotRun as reason:
        record_property("figures", json.dumps(reason.figures))
        pytest.skip(str(reason))
