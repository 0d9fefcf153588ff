"""
Sums of a gradient that are kept in half precision from block to block, and the declaration under
which they pass. PyTorch's attention on a CPU keeps them so: it shows at thousands of rows.
"""

from dataclasses import replace
from json import dumps

from attnverify.backends.implementation import Implementation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.judge.case import Case
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.precision import FORMATS, find_fields

HALVES = ("float16", "bfloat16")


def find_narrow_partials(implementation: Implementation, case: Case) -> Cause | None:
    """
    Find that a gradient which fails a case passes it where its sums may be rounded between blocks,
    which it does not declare.
    """
    dtype = case.dtype
    precision = implementation.precision(dtype)
    is_open = implementation.operation.is_gradient and precision.grad_partial is None
    long = max(case.recipe.sizes.get(letter, 1) for letter in "NM") > min(
        precision.grad_block_q, precision.grad_block_k
    )
    if dtype not in HALVES or not (is_open and long):
        return None
    declared = {dtype: replace(precision, grad_partial=FORMATS[dtype])}
    try:
        judge(replace(implementation, precisions=implementation.precisions | declared), case)
    except (Disagreement, Unsupported):
        return None
    backend, names = implementation.backend, (implementation.operation.name, implementation.name)
    fields = find_fields(backend.precision, *names, dtype) | {"grad_partial": dtype}
    words = say.PARTIALS_DECLARED.format(dtype=dtype, declared=dumps({dtype: fields}))
    return Cause(words, (Explanation(say.PARTIALS.format(dtype=dtype), words),))
