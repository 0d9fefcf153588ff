"""Faults of the gradients of the parts: scores, softmax, dropout, shifts and the memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.registry import add_faults, fault

OURS = "this project"


def right(name: str) -> Callable[..., Any]:
    """An operation as it should be."""
    return CATALOGUE[name].reference


@fault("backward", "the gradient by the query doubled", source=OURS,
       clause="the scale is that of the score: once, on each of the two",
       reveals="any input")  # fmt: skip
def scaled_dot_product_score_grad_doubled_query(**given: Any) -> Any:
    d_query, d_key = right("scaled_dot_product_score_grad")(**given)
    return 2 * d_query, d_key


@fault("backward", "no scale on the gradient by the key", source=OURS,
       clause="the scale is that of the score: once, on each of the two",
       reveals="D > 1")  # fmt: skip
def scaled_dot_product_score_grad_unscaled_key(**given: Any) -> Any:
    d_query, d_key = right("scaled_dot_product_score_grad")(**given)
    return d_query, d_key * np.sqrt(given["query"].shape[-1])


@fault("backward", "the weights' gradients of the first batch entry alone",
       source=OURS,
       clause="the weights' gradients are summed over the leading axes too",
       reveals="leading axes of more than one entry")  # fmt: skip
def additive_score_grad_first_batch(d_output: ndarray, query: ndarray, **given: Any) -> Any:
    alone = np.zeros_like(d_output)
    lead = (0,) * (d_output.ndim - 2)
    alone[lead] = d_output[lead]
    d_query, d_key, *_ = right("additive_score_grad")(d_output, query, **given)
    return d_query, d_key, *right("additive_score_grad")(alone, query, **given)[2:]


@fault("backward", "the gradient of the position score before the shift was undone",
       source=OURS, clause="its way back through the shift", reveals="N > 1")  # fmt: skip
def transformer_xl_score_grad_shift_kept(**given: Any) -> Any:
    d_query, d_key, *_ = right("transformer_xl_score_grad")(**given)
    shifted = right("rel_shift")(given["d_output"])
    _, _, d_position, *rest = right("transformer_xl_score_grad")(**given | {"d_output": shifted})
    return d_query, d_key, d_position, *rest


@fault("backward", "the gradients of u and v exchanged", source=OURS,
       clause="u belongs to the content, v to the position", reveals="any input")  # fmt: skip
def transformer_xl_score_grad_biases_exchanged(**given: Any) -> Any:
    *rest, d_u, d_v = right("transformer_xl_score_grad")(**given)
    return *rest, d_v, d_u


@fault("backward", "the position's bias beyond the scale", source=OURS,
       clause="the scale is on the sum, the position terms included",
       reveals="D > 1")  # fmt: skip
def learned_relative_score_grad_unscaled_bias(**given: Any) -> Any:
    d_query, d_key, d_table, d_bias, d_query_bias = right("learned_relative_score_grad")(**given)
    return d_query, d_key, d_table, d_bias * np.sqrt(given["query"].shape[-1]), d_query_bias


@fault("backward", "no row mean in the softmax's gradient", source=OURS,
       clause="the gradient of the softmax, w (dw - sum w dw)", reveals="M > 1")  # fmt: skip
def softmax_grad_without_mean(
    d_output: ndarray, score: ndarray, mask: ndarray | None = None
) -> Any:
    weights = right("softmax")(score, mask)
    d_score = np.where(weights > 0, weights * d_output, 0)
    found = right("softmax_grad")(d_output, score, mask)
    return d_score, *found[1:]


@fault("backward", "the gradient flows on into the segment", source="this project",
       clause="whatever arrives at the new memory goes nowhere", reveals="a memory")  # fmt: skip
def update_mems_grad_flows_on(d_new_mems: Any, hids: list[ndarray], mems: Any, mem_len: int) -> Any:
    found = right("update_mems_grad")(d_new_mems, hids, mems, mem_len)
    if mems is None:
        return found
    for d_hid, arriving in zip(found[0], d_new_mems, strict=True):
        last = min(d_hid.shape[1], arriving.shape[1])
        if last:
            d_hid[:, -last:] = arriving[:, -last:]
    return found


add_faults("backward", (
    ("dropout_grad_unscaled", "the kept gradient is not scaled up", OURS,
     "dropout of the gradient, with the same draw", "p > 0",
     lambda d_output, weights, keep, p: (d_output.copy() if keep is None else np.where(keep,
      d_output, 0.0),)),
    ("shift_right_grad_once_more", "the gradient shifted once more, not back", OURS,
     "every number goes back to where it was read", "N > 1",
     lambda d_output, x: (right("shift_right")(d_output),)),
    ("rel_shift_grad_once_more", "the gradient shifted once more, not back", OURS,
     "every number goes back to where it was read", "N > 1",
     lambda d_output, x: (right("rel_shift")(d_output),)),
))  # fmt: skip
