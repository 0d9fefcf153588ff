"""
What is kept of a contestant's rounds: their number, median and quantiles, and by how much it was
faster than each of the others in the rounds that both ran.
"""

from functools import cache
from statistics import median, quantiles
from typing import Any


def summarise(seconds: list[float]) -> dict[str, Any]:
    """Summarise the rounds in four numbers; nothing where none was timed."""
    if not seconds:
        return {}
    middle = median(seconds)
    several = len(seconds) > 1
    low, *_, high = quantiles(seconds, n=5, method="inclusive") if several else (middle, middle)
    return {"median": middle, "quantile_20": low, "quantile_80": high, "rounds": len(seconds)}


def compare_rounds(slow: list[float], fast: list[float]) -> tuple[float, float, float]:
    """
    Estimate how many times as long ``slow`` takes: the median of the rounds that both ran, and an
    interval of 95 % for it.
    """
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=False))
    below, above = interval(len(ratios))
    return median(ratios), ratios[below], ratios[above]


@cache
def interval(n: int) -> tuple[int, int]:
    """
    Find the places in sorted samples between which their median lies with 95 %, whatever the
    distribution (all of them, where n is small).
    """
    outside, term, k = 0, 1, 0  # of 2^n equally likely ways; term is n over k
    while k < n // 2 and 40 * (outside + term) <= 2**n:
        outside, term, k = outside + term, term * (n - k) // (k + 1), k + 1
    k = max(k - 1, 0)
    return k, n - 1 - k
