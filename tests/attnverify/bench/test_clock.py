"""The clock of a device, seen on a stand-in: what it calls, in which order, and for whom."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnverify.bench.measure import clock, sampling


class Device:
    """PyTorch's events on a device that counts a second for each unit of work."""

    def __init__(self) -> None:
        self.now, self.said = 0.0, list[str]()
        device = self

        class Event:
            at = 0.0

            def __init__(self, enable_timing: bool = False) -> None:
                device.said.append("event")

            def record(self) -> None:
                device.said.append("record")
                self.at = device.now

            def elapsed_time(self, stop: "Event") -> float:
                return 1e3 * (stop.at - self.at)

        self.Event = Event
        self.synchronize = lambda: self.said.append("wait")
        self._sleep = lambda cycles: self.said.append(f"sleep {cycles}")

    def call(self) -> Any:
        self.said.append("call")
        self.now += 3
        return (np.ones(2),)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device in PyTorch's place."""
    found = Device()
    module = SimpleNamespace(cuda=found)
    monkeypatch.setattr(clock, "import_module", lambda name: module)
    clock.event_clock.cache_clear()
    yield found
    clock.event_clock.cache_clear()


def test_the_device_is_busy_when_the_first_event_is_asked_for(device: Device) -> None:
    library: Any = SimpleNamespace(name="torch", synchronize=device.synchronize)
    found = clock.timed(library, "cuda", device.call)
    assert (found.seconds, found.copy[0].tolist()) == (3.0, [1.0, 1.0])
    assert device.said[2:] == ["wait", f"sleep {clock.DELAY}", "record", "call", "record", "wait"]
    assert found.copy[0] is not found.outputs[0] and 0 <= found.host < 1


def test_a_contestant_that_exchanges_the_clock_is_timed_by_the_true_one(device: Device) -> None:
    found = clock.event_clock("torch")
    device.Event.elapsed_time = lambda self, stop: 1e-3
    device.Event.record = lambda self: None
    device.synchronize = lambda: None
    assert found.time(device.call).seconds == 3.0
    assert clock.event_clock("torch") is found


def test_a_clock_that_is_looked_up_late_would_have_been_deceived(device: Device) -> None:
    device.Event.elapsed_time = lambda self, stop: 1e-3
    assert clock.event_clock("torch").time(device.call).seconds < 1


def test_what_was_set_aside_of_a_cache_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: said.append("reset"))
    monkeypatch.setattr(clock, "driver", lambda: found)
    monkeypatch.setattr(sampling, "flushed", lambda device: np.zeros(4))
    sampling.flush("cuda")
    sampling.flush("cpu")
    assert said == ["reset"]


def test_without_a_driver_nothing_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(clock.ctypes, "CDLL", absent)
    assert clock.driver.__wrapped__() is None
    monkeypatch.setattr(clock, "driver", lambda: None)
    clock.reset_persisting_cache()
