"""The bound of numbers that are stored in eight bits."""

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import rounding_error, storage_error
from attnverify.bounds.softmax_rows import Precisions, total
from attnverify.precision import Precision
from attnverify.spec import quantized


def dequantize(
    stored: ndarray, scale: ndarray, stored_as: str, *, precision: Precisions
) -> ndarray:
    """
    Bound one product, rounded in `acc` and stored; eight bits are exact in every format.

        g(1, u_acc) |y| + eta, and a rounding to `storage`

    Where subnormal numbers are flushed, a scale that is one may count as 0.
    """
    y = quantized.dequantize(stored, scale, stored_as)

    def bound(P: Precision) -> ndarray:
        made = storage_error(y, rounding_error(y, None, P.acc), P.acc, P.storage)
        flushed = [fmt.tiny for fmt in (P.acc, P.storage) if fmt.ftz]
        lost = (np.abs(scale) < max(flushed, default=0.0))[..., None]
        return made + np.where(lost, np.abs(y), 0.0)

    return total(bound, precision)
