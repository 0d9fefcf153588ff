"""
Lists of cases for a run: those of a GPU's first minutes, those of an hour, all.

Nothing that is asked for takes more memory than a card has: who holds every pair of scores is left
out where they do not fit.
"""

from dataclasses import replace

from attnverify.bench.measure.cases import COMPILED, Case, cases
from attnverify.catalogue.traits import CHAPTERS

__all__ = ["LISTS", "MEMORY", "cases_of_list", "estimate_memory", "fitting"]

LISTS = ("short", "long", "all")

MEMORY = 70e9
"""Bytes of a card that a case may ask for."""

AT_2048 = "B=8 N=2048"
SHORT = (
    (f"flash grid {AT_2048} D=64", ("forward", "both")),
    (f"flash grid {AT_2048} D=128", ("forward",)),
    (f"plain causal {AT_2048}", ("forward",)),
    (f"alibi {AT_2048}", ("forward", "both")),
    (f"transformer-xl {AT_2048}", ("forward", "both")),
    (f"relative {AT_2048}", ("forward", "both")),
    ("additive square 512", ("forward", "both")),
)
"""Twelve cases, from each of which a goal is read."""

WITH_A_COMPILER = (
    (f"alibi {AT_2048}", "both"),
    (f"transformer-xl {AT_2048}", "forward"),
    (f"relative {AT_2048}", "forward"),
    ("additive square 512", "forward"),
)
"""Where a goal is held against what a compiler makes, which takes half a minute to make it."""

EVERY_PAIR = ("torch_impl:eager", "documents", "labml-nn", *COMPILED)
"""Who holds every pair of scores at once."""

BYTES_A_PAIR = {"forward": 12, "backward": 24, "both": 24}
"""Of a half type: the scores, what is added, the weights; and the gradients of each."""


def cases_of_list(name: str, chapter: str, device: str) -> list[Case]:
    """List the cases of a chapter that are on a list; a CPU has one list."""
    found = [fitting(case) for case in cases(chapter, device)]
    if device == "cpu" or name == "all":
        return found
    wanted = in_hour if name == "long" else is_short
    return [replace(case, seconds=2.0, without=compiled(case)) for case in found if wanted(case)]


def is_short(case: Case) -> bool:
    """Tell whether a case is one of the twelve."""
    return case.dtype == "bfloat16" and case.mode in dict(SHORT).get(case.name, ())


def in_hour(case: Case) -> bool:
    """
    Tell whether a case is on the long list: forward and both, half a dtype, and no length at which
    the judge takes minutes.
    """
    return case.mode != "backward" and case.dtype != "float16" and case.sizes.get("N", 0) <= 8192


def compiled(case: Case) -> tuple[str, ...]:
    """Who is not asked: compilers, but where a goal names them."""
    named = (case.name, case.mode) in WITH_A_COMPILER and case.dtype == "bfloat16"
    return case.without if named else (*case.without, *COMPILED)


def fitting(case: Case) -> Case:
    """The case without those whose scores do not fit on a card."""
    if case.device == "cpu" or estimate_memory(case) <= MEMORY:
        return case
    return replace(case, without=(*case.without, *EVERY_PAIR))


def estimate_memory(case: Case, at_once: int = 10) -> float:
    """
    Estimate the bytes that a race holds: the inputs four times, two outputs of each of so many who
    take part, and the scores of one who holds them all, where one is asked.
    """
    sizes, width = case.sizes, 4 if case.dtype == "float32" else 2
    numbers = count_numbers(case)
    held = width * (4.0 + 2 * at_once) * numbers
    if "M" not in sizes or set(EVERY_PAIR) <= set(case.without):
        return held
    pairs = sizes.get("B", 1) * sizes.get("H", 1) * sizes["N"] * sizes["M"]
    if "A" in sizes:
        pairs *= sizes["A"]
    return held + pairs * BYTES_A_PAIR[case.mode] * width / 2


def count_numbers(case: Case) -> float:
    """Count the numbers of the largest inputs together."""
    sizes = case.sizes
    if "L" in sizes:
        return float(sizes["B"] * sizes["L"] * (sizes["S"] + sizes.get("N", 0)) * sizes["F"])
    if "M" not in sizes:
        return float(sizes.get("N", 1))
    lead = sizes.get("B", 1) * sizes.get("H", 1)
    width = sizes.get("D", sizes.get("Q", 0)) + sizes.get("E", 0)
    shifted = 0 if width else 16 * sizes["N"] * sizes["M"]
    tables = 2 * sizes.get("P", 0) * sizes.get("H", 1) * sizes.get("D", 0)
    return float(lead * (sizes["N"] + sizes["M"]) * width / 2 * 1.5 + shifted + tables)


def all_cases(name: str, device: str) -> list[Case]:
    """List the cases of all chapters."""
    return [case for chapter in CHAPTERS for case in cases_of_list(name, chapter, device)]
