"""
Faults of arrays that lie unlike a fresh one: their width not last in memory, or one tensor given as
key and as value.
"""

from typing import Any

import numpy as np

from attnverify.catalogue.pytrees import map_leaves
from attnverify.faults.adapter import widened
from attnverify.faults.registry import OURS, add_faults
from attnverify.reference import attention, gradients

EACH, TOGETHER = (
    "one gradient per differentiable input",
    "key and value that share their memory",
)
ANYWHERE = "a call depends on its numbers, wherever they lie"


def _lines_of(x: Any) -> Any:
    """The array as it lies in memory where its last axis is not the densest, read as if it were."""
    if x.ndim < 2 or not 0 < x.strides[-2] < x.strides[-1]:
        return x.astype(np.float64)
    return np.ascontiguousarray(x.swapaxes(-1, -2)).reshape(x.shape).astype(np.float64)


def _read_by_lines(operation: str, name: str, **given: Any) -> Any:
    wide = map_leaves(widened, {key: x for key, x in given.items() if key != name})
    return getattr(attention, operation)(**wide, **{name: _lines_of(given[name])})


def _shared(gradient: Any, change: Any) -> Any:
    """Gradients by key and value that are changed where these are one tensor."""

    def wrong(**given: Any) -> Any:
        d_query, *both = gradient(**map_leaves(widened, given))
        is_one = np.shares_memory(given["key"], given["value"])
        return d_query, *(change(*both[:2]) if is_one else both[:2]), *both[2:]

    return wrong


add_faults("layout", (
    ("scaled_dot_product_attention_key_lines",
     "keys read line by line where their width is not last in memory", OURS, ANYWHERE,
     "keys stored [B H D M]",
     lambda **given: _read_by_lines("scaled_dot_product_attention", "key", **given),
     {"raw": True}),
    ("transformer_xl_attention_value_lines",
     "values read line by line where their width is not last in memory", OURS, ANYWHERE,
     "values stored [B H E M]",
     lambda **given: _read_by_lines("transformer_xl_attention", "value", **given), {"raw": True}),
    ("scaled_dot_product_attention_grad_shared_key",
     "one tensor as key and as value, whose gradients are both the sum", OURS, EACH, TOGETHER,
     _shared(gradients.scaled_dot_product_attention_grad, lambda d_key, d_value: [d_key + d_value] *
      2), {"raw": True}),
    ("alibi_attention_grad_shared_key",
     "one tensor as key and as value, whose gradient is counted once", OURS, EACH, TOGETHER,
     _shared(gradients.alibi_attention_grad, lambda d_key, d_value: (d_key,
      np.zeros_like(d_value))), {"raw": True}),
))  # fmt: skip
