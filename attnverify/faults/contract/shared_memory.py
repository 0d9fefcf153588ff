"""
Faults of arrays that lie unlike a fresh one: their width not last in memory, or one tensor given as
key and as value.
"""

from typing import Any

import numpy as np

from attnverify.catalogue.pytrees import map_leaves
from attnverify.faults.adapter import widened
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, gradients

OURS = "this project"
ANYWHERE = "a call depends on its numbers, wherever they lie"


def _lines_of(x: Any) -> Any:
    """The array as it lies in memory where its last axis is not the densest, read as if it were."""
    if x.ndim < 2 or not 0 < x.strides[-2] < x.strides[-1]:
        return x.astype(np.float64)
    return np.ascontiguousarray(x.swapaxes(-1, -2)).reshape(x.shape).astype(np.float64)


def _read_by_lines(operation: str, name: str, **given: Any) -> Any:
    wide = map_leaves(widened, {key: x for key, x in given.items() if key != name})
    return getattr(attention, operation)(**wide, **{name: _lines_of(given[name])})


@fault("layout", "one tensor as key and as value, whose gradients are both the sum",
       source=OURS, clause="one gradient per differentiable input",
       reveals="key and value that share their memory", raw=True)  # fmt: skip
def scaled_dot_product_attention_grad_shared_key(key: Any, value: Any, **given: Any) -> Any:
    wide = map_leaves(widened, {"key": key, "value": value, **given})
    d_query, d_key, d_value, *others = gradients.scaled_dot_product_attention_grad(**wide)
    if np.shares_memory(key, value):
        d_key = d_value = d_key + d_value
    return d_query, d_key, d_value, *others


@fault("layout", "one tensor as key and as value, whose gradient is counted once",
       source=OURS, clause="one gradient per differentiable input",
       reveals="key and value that share their memory", raw=True)  # fmt: skip
def alibi_attention_grad_shared_key(key: Any, value: Any, **given: Any) -> Any:
    wide = map_leaves(widened, {"key": key, "value": value, **given})
    d_query, d_key, d_value = gradients.alibi_attention_grad(**wide)
    return d_query, d_key, np.zeros_like(d_value) if np.shares_memory(key, value) else d_value


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
))  # fmt: skip
