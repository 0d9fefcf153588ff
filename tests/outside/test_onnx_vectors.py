"""
The published test vectors of ONNX's Attention, each held to the specification by the bound that a
kernel is held to: what other people computed, once and for all, agrees with the law.
"""

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import bounds, spec
from attnverify.catalogue.dtypes import largest
from attnverify.judge.comparison import compare
from attnverify.precision import Precision, resolve

pytest.importorskip("onnx", reason="ONNX's vectors come with its package")

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
AT_LEAST = 93
"""So many vectors were published with onnx 1.23."""


def vectors() -> list[Any]:
    """Make the vectors as ONNX makes its files of them: each of one node."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("onnx.backend.test.case.node.attention")  # all that it tests, as it is read
    return [case for case in node._NodeTestCases if "expanded" not in case.name]


def numbers(case: Any) -> tuple[dict[str, Any], Mapping[str, Any], ndarray]:
    """Return the arrays of a vector by ONNX's names, its attributes, and its first output."""
    from onnx import helper

    ((node,), (given, returned)) = case.model.graph.node, case.data_sets[0]
    own = dict(zip((i.name for i in case.model.graph.input), given, strict=True))
    arrays = {name: own.get(i) for name, i in zip(INPUTS, node.input, strict=False) if i}
    return arrays, {a.name: helper.get_attribute_value(a) for a in node.attribute}, returned[0]


def heads_first(x: ndarray, heads: int | None) -> ndarray:
    """Return rows whose heads lie beside each other with these in front of the positions."""
    return x if heads is None else x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def as_specified(arrays: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Write a vector as a call of ``grouped_attention``, in float64."""
    wide = {
        name: x if x is None or x.dtype.kind in "bi" else x.astype(np.float64)
        for name, x in arrays.items()
    }
    counts = {"Q": "q_num_heads", "K": "kv_num_heads", "V": "kv_num_heads"}
    query, key, value = (heads_first(wide[n], said.get(count)) for n, count in counts.items())
    past = wide.get("past_key")
    if past is not None:
        key = np.concatenate([past, key], 2)
        value = np.concatenate([wide["past_value"], value], 2)
    call: dict[str, Any] = {"query": query, "key": key, "value": value}
    mask = wide.get("attn_mask")
    if mask is not None:  # what a mask does not reach is hidden
        hidden = False if mask.dtype == bool else -np.inf
        rest = key.shape[2] - mask.shape[-1]
        widths = [(0, 0)] * (mask.ndim - 1) + [(0, max(rest, 0))]
        call["mask"] = np.pad(mask, widths, constant_values=hidden)
    if wide.get("nonpad_kv_seqlen") is not None:
        call["lengths"] = wide["nonpad_kv_seqlen"]
    else:
        call["offset"] = np.full(len(query), 0 if past is None else past.shape[2])
    window = [said.get(f"{side}_window_size", -1) for side in ("left", "right")]
    if max(window) >= 0:
        call["window"] = tuple(n if n >= 0 else None for n in window)
    call["causal"] = bool(said.get("is_causal", 0))
    options = {"soft_cap": said.get("softcap") or None, "scale": said.get("scale")}
    return call | {name: x for name, x in options.items() if x is not None}


def arithmetic(dtype: str) -> Precision:
    """ONNX scales both factors of a score, and does each step in the dtype of the inputs."""
    fields = {"preset": "stepwise", "prescale": dtype}
    return resolve(fields, "grouped_attention", "", dtype)


@pytest.mark.parametrize("case", vectors(), ids=lambda case: case.name)
def test_a_published_vector_is_within_the_bound(case: Any) -> None:
    arrays, said, output = numbers(case)
    call = as_specified(arrays, said)
    expected, _ = spec.grouped_attention(**call)
    bound, _ = bounds.bound("grouped_attention", call, arithmetic(str(output.dtype)))
    actual = heads_first(output.astype(np.float64), said.get("q_num_heads"))
    assert compare(actual, expected, bound, largest(str(output.dtype))).passed


def test_all_that_are_published_are_held() -> None:
    assert len(vectors()) >= AT_LEAST
