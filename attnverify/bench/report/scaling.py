"""How cost grows with the length: exponents of time and memory, fitted where the length doubles."""

from collections import defaultdict
from dataclasses import dataclass
from math import log

from attnverify.bench.report.results import Record, correct


def curves(records: list[Record]) -> dict[tuple[str, str], list[Record]]:
    """Collect the growth cases of each operation and contestant, by length."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record["case"].startswith("growth ") and correct(record):
            found[record["operation"], record["label"]].append(record)
    return {
        name: sorted(curve, key=lambda record: record["sizes"]["N"])
        for name, curve in found.items()
    }


def exponent(points: list[tuple[float, float]]) -> float | None:
    """
    Compute the slope of the logarithms by least squares; None for fewer than three points or one
    that is not positive.
    """
    if len(points) < 3 or min(min(point) for point in points) <= 0:
        return None
    xs, ys = ([log(point[axis]) for point in points] for axis in (0, 1))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum(
        (a - x) ** 2 for a in xs
    )


@dataclass(frozen=True)
class Growth:
    """The exponents of one contestant in one operation; None where there is none to fit."""

    operation: str
    label: str
    time: float
    memory: float | None
    lengths: tuple[int, int]

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table: operation, contestant, time, memory, lengths."""
        memory = "not measured" if self.memory is None else f"N^{self.memory:.2f}"
        first, last = self.lengths
        return self.operation, self.label, f"N^{self.time:.2f}", memory, f"{first} to {last}"


def fit_growth(records: list[Record]) -> list[Growth]:
    """Fit the exponents of all curves of which the time can be fitted."""
    found = []
    for (operation, label), curve in curves(records).items():
        lengths = [record["sizes"]["N"] for record in curve]
        times = [record["seconds"]["median"] for record in curve]
        memories = [record["peak_extra_bytes"] or 0 for record in curve]
        time = exponent(list(zip(lengths, times, strict=True)))
        memory = exponent(list(zip(lengths, memories, strict=True)))
        if time is not None:
            found.append(Growth(operation, label, time, memory, (lengths[0], lengths[-1])))
    return found


def exponents(records: list[Record]) -> list[str]:
    """List ``alibi_attention, torch_impl: time N^2.01, memory N^1.02 from N = 512 to 4096``"""
    return [
        f"{operation}, {label}: time {time}, memory {memory} from N = {lengths}"
        for operation, label, time, memory, lengths in (one.cells for one in fit_growth(records))
    ]
