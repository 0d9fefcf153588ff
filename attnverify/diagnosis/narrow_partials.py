"""
Sums of a gradient that are kept in half precision from block to block, and the declaration under
which they pass. PyTorch's attention on a CPU keeps them so: it shows at thousands of rows.
"""

from dataclasses import replace

from attnverify.backends.implementation import Implementation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.declaring import declare
from attnverify.judge.case import Case, case_of
from attnverify.judge.judging import is_right
from attnverify.precision import FORMATS

HALVES = ("float16", "bfloat16")


def find_narrow_partials(implementation: Implementation, case: Case) -> Cause | None:
    """
    Find that a gradient which fails a case passes it where its sums may be rounded between blocks,
    which it does not declare. The line declares it of the other half precision too where that shows
    the same, for a second line would take the place of the first.
    """
    if case.dtype not in HALVES or not _passes_with_partials(implementation, case):
        return None
    shown = [
        dtype
        for dtype in HALVES
        if dtype == case.dtype
        or (
            not implementation.backend.declared.leaves_out(dtype)
            and _shows_partials(implementation, case_of(case.recipe, dtype))
        )
    ]
    declared = declare(implementation, {dtype: {"grad_partial": dtype} for dtype in shown})
    dtypes = " and ".join(shown)
    words = say.PARTIALS_DECLARED.format(dtype=dtypes, declared=declared)
    return Cause(words, (Explanation(say.PARTIALS.format(dtype=dtypes), words, declared),))


def _shows_partials(implementation: Implementation, case: Case) -> bool:
    """Tell whether a case fails, and passes where the sums may be rounded."""
    return not is_right(implementation, case) and _passes_with_partials(implementation, case)


def _passes_with_partials(implementation: Implementation, case: Case) -> bool:
    dtype, precision = case.dtype, implementation.precision(case.dtype)
    is_open = implementation.operation.is_gradient and precision.grad_partial is None
    long = max(case.recipe.sizes.get(letter, 1) for letter in "NM") > min(
        precision.grad_block_q, precision.grad_block_k
    )
    freed = {dtype: replace(precision, grad_partial=FORMATS[dtype])}
    precisions = implementation.precisions | freed
    return is_open and long and is_right(replace(implementation, precisions=precisions), case)
