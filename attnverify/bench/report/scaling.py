"""How cost grows with the length: exponents of time and memory, fitted where the length doubles."""

from collections import defaultdict
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


def exponents(records: list[Record]) -> list[str]:
    """List ``alibi_attention, torch_impl: time N^2.01, memory N^1.02 from N = 512 to 4096``"""
    lines = []
    for (operation, label), curve in curves(records).items():
        lengths = [record["sizes"]["N"] for record in curve]
        time = exponent(
            [(n, record["seconds"]["median"]) for n, record in zip(lengths, curve, strict=True)]
        )
        memory = exponent(
            [(n, record["peak_extra_bytes"] or 0) for n, record in zip(lengths, curve, strict=True)]
        )
        if time is not None:
            grows = f"time N^{time:.2f}, memory " + (
                f"N^{memory:.2f}" if memory is not None else "not measured"
            )
            lines.append(f"{operation}, {label}: {grows} from N = {lengths[0]} to {lengths[-1]}")
    return lines
