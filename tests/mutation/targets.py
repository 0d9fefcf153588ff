"""Which files are mutated, and which tests are asked of each, the quickest first."""

from collections.abc import Iterator
from pathlib import Path

CHAPTERS = ("alibi", "attention", "layers", "masks", "memory", "relative", "scores", "shifts")
OPERATIONS = {
    "alibi": "slopes or alibi",
    "attention": "softmax or dropout or attention",
    "layers": "multi_head or self_attention or transformer_xl",
    "masks": "mask",
    "memory": "mems or memory",
    "relative": "positions or transformer_xl or learned_relative",
    "scores": "score",
    "shifts": "shift or columns",
}
"""What the names of the tests of a chapter's operations contain."""
PARTS = {"projections": "layers"}
"""A file of every column that holds a part of a chapter."""
BOUNDS = (
    "tests/attnverify/bounds/test_written_formulas.py",
    "tests/attnverify/bounds/test_error_rules.py",
    "tests/attnverify/bounds/test_bounds.py",
)
GRADIENTS = (
    "tests/spec/test_invalid_gradient_calls.py",
    "tests/spec/test_gradients_of_parts.py",
    "tests/spec/test_gradients.py",
)
Tests = tuple[tuple[str, ...], ...]
"""Arguments of pytest, one run after the other until one is red."""


def choose_tests(path: str) -> Tests:
    """The tests that must notice a mutant of this file."""
    folder, _, rest = path.partition("/")
    chapter = PARTS.get(Path(rest).stem, Path(rest).stem)
    words = ("-k", OPERATIONS.get(chapter, "test"))
    against = ("tests/numpy_ref/test_against_spec.py", *words)
    if folder == "spec":
        own = (f"tests/test_{chapter}.py",) if chapter in OPERATIONS else ()
        oracle = (
            "tests/spec/test_scalar_oracle.py",
            "tests/spec/test_scalar_derivatives.py",
            *words,
        )
        clauses = ("tests/spec/test_clauses.py", *words)
        examples = (path, "spec", *own, "-m", "not differential")
        return (examples, clauses, oracle, against, GRADIENTS)
    if folder == "numpy_ref":
        return (against, against[:1], judged(folder, chapter, words[1]))
    if folder == "torch_impl":
        derivatives = ("tests/torch_impl/test_derivatives.py", *words)
        views = ("tests/torch_impl/test_copies_and_views.py", *words)
        return (views, derivatives, judged(folder, chapter, f"({words[1]}) and {NO_WAY_ROUND}"))
    return JUDGE.get(path, (BOUNDS, LEGAL_ORDERS))


def judged(column: str, chapter: str, words: str) -> tuple[str, ...]:
    """The cells of a column in one chapter whose names have these words."""
    chosen = ("-m", "differential", "--attn-profile", "quick", "--attn-backend", column)
    return (f"tests/test_{chapter}.py", *chosen, "-k", words)


NO_WAY_ROUND = "not triton and not module and not autocast"
LEGAL_ORDERS = (
    "tests/attnverify/bounds/test_witnesses.py",
    "tests/attnverify/bounds/test_legal_orders.py",
    "-k",
    "witness or exceed or reached",
)
JUDGED = (
    "tests/attnverify/judge/test_judge.py",
    "-k",
    "by_itself or by_themselves or names_the_place or infinity or library_gradient",
)
JUDGE: dict[str, Tests] = {
    "attnverify/judge/comparison.py": (
        ("tests/attnverify/judge/test_comparison.py",),
        JUDGED,
    ),
    "attnverify/judge/judging.py": (
        ("tests/attnverify/judge/test_comparison.py",),
        ("tests/attnverify/judge/test_weights_left_out.py",),
        JUDGED,
    ),
    "attnverify/checks/invalid_calls.py": (("tests/attnverify/checks/test_invalid_calls.py",),),
} | {
    f"attnverify/contract/{module}.py": (("tests/attnverify/contract",),)
    for module in ("arguments", "attention", "layers", "masks", "shapes")
}


def target_files(root: Path) -> Iterator[str]:
    """The files that are mutated."""
    for column in ("spec", "numpy_ref", "torch_impl"):
        yield from (f"{column}/{chapter}.py" for chapter in sorted((*CHAPTERS, *PARTS)))
    yield from sorted(
        file.relative_to(root).as_posix()
        for file in (root / "attnverify" / "bounds").rglob("*.py")
        if file.name != "__init__.py"
    )
    yield from JUDGE
