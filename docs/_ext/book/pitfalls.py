"""
The traps of an operation: where the sources are wrong, and the faults that projects shipped, one of
them as a picture.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.faults.registry import Fault, read_faults
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import Observation, observe_one
from book import facts
from book.docstrings import errata
from tests.attnverify.faults.first_failure import implementation_of

PICTURED = {
    "softmax": "softmax_average_of_empty_rows",
    "merge_masks": "merge_masks_lowest_number",
    "shift_right": "shift_right_zero_fill",
    "rel_shift": "rel_shift_zero_triu",
    "scaled_dot_product_score": "scaled_dot_product_score_by_width",
    "transformer_xl_score": "transformer_xl_score_unshifted",
    "transformer_xl": "transformer_xl_memory_of_outputs",
    "multi_head_self_attention": "multi_head_self_attention_padded_queries",
    "alibi_attention": "alibi_attention_top_left",
}
"""The fault that is drawn; where none is named, the first one that a small picture shows."""


def section(operation: Operation) -> Iterator[str]:
    for text in errata(operation.specification):
        yield f"{facts.with_links(facts.without_seeds(text))}\n"
    shipped = [fault for fault in faults_of(operation) if fault.source != "this project"]
    others = [fault for fault in faults_of(operation) if fault.source == "this project"]
    if pictured := next(
        (fault for fault in (*chosen(operation), *shipped, *others) if small_case(fault.name)), None
    ):
        yield from picture(pictured)
    if shipped:
        yield (
            "Bugs that public projects shipped or sources print. Each is seeded as a fault, and "
            "must be noticed:\n"
        )
        yield from table(shipped, {"where it was": "source"})
    if others:
        yield f"Further faults, seeded without a public thread ({len(others)}):\n"
        yield from table(others, {})


def chosen(operation: Operation) -> list[Fault]:
    return [fault for fault in faults_of(operation) if fault.name == PICTURED.get(operation.name)]


def faults_of(operation: Operation) -> list[Fault]:
    faults = read_faults()
    names = {operation.name, f"{operation.name}_grad"}
    return [fault for fault in faults.values() if fault.operation.name in names]


def table(faults: list[Fault], more: dict[str, str]) -> Iterator[str]:
    """What is wrong, further columns, the clause that it violates and what shows it."""
    columns = {
        "what is wrong": "words",
        **more,
        "what it violates": "clause",
        "what shows it": "reveals",
    }
    yield ".. list-table::\n   :header-rows: 1\n   :class: faults\n"
    rows = [list(columns)] + [[told(fault, name) for name in columns.values()] for fault in faults]
    for row in rows:
        yield "   * - " + "\n     - ".join(row)
    yield ""


def told(fault: Fault, name: str) -> str:
    """One cell of the table: the words, or the source with a link to its thread."""
    text = getattr(fault, name)
    if name == "clause" and text.startswith("PRECISION"):
        text = f"the accuracy that it claims, {text}"
    return (name == "source" and facts.linked_source(text)) or literal_free(text)


def literal_free(text: str) -> str:
    """Text that means itself: what reStructuredText would take for markup is escaped."""
    return "".join(f"\\{letter}" if letter in "*`|_\\" else letter for letter in text) or "-"


def picture(fault: Fault) -> Iterator[str]:
    case = small_case(fault.name)
    assert case is not None
    count = wrong(case)[2].sum()
    framed = "one wrong element is" if count == 1 else f"{count} wrong elements are"
    yield (
        f"The specification, and beside it the fault *{literal_free(fault.words)}* "
        f"(``{fault.name}``), on {shape_of(case)}:\n"
    )
    yield ".. picture:: pitfalls.beside"
    yield (
        f"   :alt: Two matrices, the expected answer and that of {fault.name}; {framed} framed.\n"
    )
    yield f'   "{fault.name}"\n'


def shape_of(case: Observation) -> str:
    """The sizes of a case, and how its keys are hidden, in words."""
    sizes = ", ".join(f"{letter} = {size}" for letter, size in case.recipe.sizes.items())
    masks = [part for part in (case.recipe.mask, case.recipe.padding) if part]
    return sizes + "".join(f", under a mask that {HIDES[mask['pattern']]}" for mask in masks)


HIDES = {
    "random": "hides keys at random",
    "sparse": "hides most keys, at random",
    "right_padding": "hides padding at the end",
    "left_padding": "hides padding at the beginning",
    "causal": "hides the keys behind a query",
    "window": "shows the nearest keys alone",
    "first_block": "hides the first keys",
    "last_block": "hides the last keys",
    "empty_rows": "leaves some queries no key",
    "one_key": "shows each query one key",
    "nothing": "hides everything",
}


@lru_cache(maxsize=512)
def small_case(name: str) -> Observation | None:
    """The smallest of the suite's own recipes whose answer fits into a picture and is wrong."""
    fault = read_faults()[name]
    recipes = (
        *fixed_cases(fault.operation.name),
        *draw_recipes(fault.operation.name, "any", 100, 0),
    )
    small = sorted(
        {r for r in recipes if fits(r.sizes) and r.values["family"] in ("normal", "spread")},
        key=lambda r: (area(r.sizes), r.text),
    )
    for recipe in small[:40]:
        try:
            dtype = "float64" if "float64" in fault.operation.dtypes else "bool"
            case = observe_one(implementation_of(fault), case_of(recipe, dtype))
        except (Disagreement, Unsupported):
            continue
        if case.wrong and drawable(case):
            return case
    return None


def fits(sizes: dict[str, int]) -> bool:
    return all(1 < sizes.get(letter, 2) <= 7 for letter in "NM") and all(
        size <= 8 for size in sizes.values()
    )


def area(sizes: dict[str, int]) -> int:
    return int(np.prod([max(size, 1) for size in sizes.values()]))


def drawable(case: Observation) -> bool:
    _, _, marked = wrong(case)
    return bool(marked.any()) and marked.shape[-1] <= 9 and marked.shape[-2] <= 9


def wrong(case: Observation) -> tuple[ndarray, ndarray, ndarray]:
    """
    The expected answer, the fault's, and where they differ, in the slice (last two axes) that
    differs most.
    """
    for expected, actual, bound in zip(case.expected, case.actual, case.bounds, strict=True):
        if expected.shape != actual.shape:
            continue
        right = compare(actual, expected, bound).arrays[3]
        expected, actual, marked = (np.atleast_2d(x) for x in (expected, actual, ~right))
        if marked.any():
            worst = max(np.ndindex(marked.shape[:-2]), key=lambda at: marked[at].sum())
            return expected[worst], actual[worst], marked[worst]
    return np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1), bool)
