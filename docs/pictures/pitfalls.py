"""The right answer beside a wrong one."""

from book.pitfalls import small_case, wrong

from pictures import style


def beside(name: str) -> None:
    """
    The expected answer and a seeded fault's on the same small inputs, the wrong elements framed.
    """
    case = small_case(name)
    assert case is not None
    expected, fault, marked = wrong(case)
    N, M = expected.shape
    left, right = style.panels(2, width=1.0 + 0.5 * M, height=0.9 + 0.42 * N)
    style.matrix(left, expected, "the specification", row="row", column="column")
    style.matrix(right, fault, "with the fault", row="row", column="column", marked=marked)
    right.title.set_color(style.colour("wrong"))
