"""The right answer beside a wrong one."""

from book.traps import small_case, wrong

from pictures import ink


def beside(name: str) -> None:
    """The law's answer and a seeded fault's on the same small inputs, the wrong elements framed."""
    case = small_case(name)
    assert case is not None
    law, fault, marked = wrong(case)
    N, M = law.shape
    left, right = ink.panels(2, width=1.0 + 0.5 * M, height=0.9 + 0.42 * N)
    ink.matrix(left, law, "the law", row="row", column="column")
    ink.matrix(right, fault, "with the fault", row="row", column="column", marked=marked)
    right.title.set_color(ink.colour("wrong"))
