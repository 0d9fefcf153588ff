"""``pytest -m gpu``: the steps of ``benchmarks.gpu_report``, on the device that is here."""

from benchmarks.gpu_report.on_device import test_a_step_passes_on_this_device

__all__ = ["test_a_step_passes_on_this_device"]
