"""The tables of what is noticed: the smallest factors, lost keys and narrow running totals."""

from collections.abc import Iterator
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.traits import DTYPES
from book.status import NOT_MEASURED, listed, origin, read

FORWARD = dict.fromkeys(DTYPES, 1e-3)
GRADIENT = {"float64": 1e-3, "float32": 1e-3, "float16": 5e-3, "bfloat16": 5e-3}
LAYER = {"float64": 2e-3, "float32": 2e-3, "float16": 1e-2, "bfloat16": 1e-2}
"""The goals: the smallest error that should be noticed."""

Answers = dict[str, float | None]


def goal(operation: Operation, dtype: str) -> float:
    """A gradient's goal is that of a gradient, of a layer too."""
    kinds = GRADIENT if operation.is_gradient else LAYER if operation.traits.parameters else FORWARD
    return kinds[dtype]


def factors() -> Iterator[tuple[Operation, Answers]]:
    for name, tables in (read("sight") or {"operations": {}})["operations"].items():
        if "factor" in tables:
            yield CATALOGUE[name], tables["factor"]


def smallest_errors() -> Iterator[str]:
    """By operation and dtype: the smallest factor that is noticed, where it is largest."""
    rows = [
        [link(op.name), *(largest(op, answers, dtype) for dtype in DTYPES)]
        for op, answers in factors()
    ]
    if not rows:
        yield f"{NOT_MEASURED}.\n"
        return
    yield from listed(["operation", *DTYPES], rows, kind="measured")
    yield f"{origin(read('sight'))}\n"


def link(operation: str) -> str:
    """Name an operation, with a link to its page; a gradient is on that of what it is one of."""
    return f":doc:`{operation} </operations/{operation.removesuffix('_grad')}>`"


def largest(op: Operation, answers: Answers, dtype: str) -> str:
    found = {words: size for words, size in answers.items() if f" {dtype} " in words}
    if not found:
        return "-"
    size = max(found.values(), key=size_of)
    return f"**{percent(size)}**" if beyond(op, dtype, size) else percent(size)


def size_of(size: float | None) -> float:
    return float("inf") if size is None else size


def beyond(op: Operation, dtype: str, size: float | None) -> bool:
    return size_of(size) > 1.005 * goal(op, dtype)  # half a per cent is 0.501 % on the grid


def percent(size: float | None) -> str:
    return "none" if size is None else f"{100 * size:.2g} %" if size > 1.1e-6 else "0.0001 %"


def missed_goals() -> Iterator[str]:
    """Every factor that is noticed only when it is larger than the goal."""
    rows = [
        [link(op.name), arithmetic, dtype, factor, percent(size), percent(goal(op, dtype))]
        for op, (arithmetic, dtype, factor), size in missed()
    ]
    if not rows:
        yield "None of those measured.\n"
        return
    titles = ["operation", "claimed arithmetic", "dtype", "factor", "noticed from", "goal"]
    yield from listed(titles, rows, kind="measured")


def missed() -> Iterator[tuple[Operation, list[str], float | None]]:
    """Each with its claimed arithmetic, dtype and factor."""
    for op, answers in factors():
        for asked, size in answers.items():
            words = asked.split(" ", 2)
            if beyond(op, words[1], size):
                yield op, words, size


def lost_keys() -> Iterator[str]:
    """By attention and place of the key: the lengths at which its loss is not noticed."""
    rows = [
        [link(name), lost, *(lengths(found, dtype, lost) for dtype in DTYPES)]
        for name, found in tables("key")
        for lost in dict.fromkeys(asked.split()[1] for asked in found)
    ]
    yield from listed(["operation", "key", *DTYPES], rows, kind="measured")


def narrow_sums() -> Iterator[str]:
    """By attention, total and its format: how often it is noticed, over all tiles and lengths."""
    rows = [
        [link(name), f"{what} in {narrow}"]
        + [how_often(found, f"{dtype} {narrow} over ") for dtype in DTYPES]
        for what in ("sum", "normaliser")
        for name, found in tables(f"narrow {what}")
        for narrow in ("bfloat16", "float16")
    ]
    yield from listed(["operation", "running total", *DTYPES], rows, kind="measured")


def drawn() -> Iterator[str]:
    """By what kernels get wrong at real sizes: how often it is drawn, in how many operations."""
    found = read("drawn")["kinds"]
    rows = [
        [words, *("{} in {}".format(*counts[words]) for counts in found.values())]
        for words in found["default"]
    ]
    yield from listed(["what is drawn", *found], rows, kind="measured")


def tables(kind: str) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    for name, found in (read("sight") or {"operations": {}})["operations"].items():
        if kind in found:
            yield name, found[kind]


def lengths(found: dict[str, dict[str, Any]], dtype: str, lost: str) -> str:
    """All lengths, or all but those that are missed."""
    answer = found.get(f"{dtype} {lost}")
    if answer is None:
        return "-"
    missed = ", ".join(map(str, answer["missed"]))
    return f"all but {missed}" if missed else f"all {answer['lengths']}"


def how_often(found: dict[str, dict[str, Any]], asked: str) -> str:
    answers = [answer for words, answer in found.items() if words.startswith(asked)]
    judged = sum(answer["lengths"] for answer in answers)
    return f"{judged - sum(len(a['missed']) for a in answers)} of {judged}" if judged else "-"
