"""Faults of the gradients of the parts: scores, softmax, dropout, shifts and the memory."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.references import reference_of as right
from attnverify.faults.changes import exchanged, of_part, with_outputs
from attnverify.faults.registry import OURS, add_faults, fault
from attnverify.inputs.recipe import Inputs

ONCE = "the scale is that of the score: once, on each of the two"
PRODUCT, TRANSFORMER_XL = right("scaled_dot_product_score_grad"), right("transformer_xl_score_grad")


def unscaled(d: ndarray, given: Inputs) -> Any:
    return d * np.sqrt(given["query"].shape[-1])


def of_first_entry(d_output: ndarray) -> ndarray:
    """The first of all leading axes alone."""
    alone, lead = np.zeros_like(d_output), (0,) * (d_output.ndim - 2)
    alone[lead] = d_output[lead]
    return alone


def without_mean(d_score: ndarray, given: Inputs) -> ndarray:
    weights = right("softmax")(given["score"], given["mask"])
    return np.where(weights > 0, weights * given["d_output"], 0)


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
    ("scaled_dot_product_score_grad_doubled_query", "the gradient by the query doubled", OURS, ONCE,
     "any input", with_outputs(PRODUCT, {0: lambda d, x: 2 * d})),
    ("scaled_dot_product_score_grad_unscaled_key", "no scale on the gradient by the key", OURS,
     ONCE, "D > 1", with_outputs(PRODUCT, {1: unscaled})),
    ("additive_score_grad_first_batch", "the weights' gradients of the first batch entry alone",
     OURS, "the weights' gradients are summed over the leading axes too",
     "leading axes of more than one entry",
     of_part(right("additive_score_grad"), (2, 3, 4), of_first_entry)),
    ("transformer_xl_score_grad_shift_kept",
     "the gradient of the position score before the shift was undone", OURS,
     "its way back through the shift", "N > 1",
     of_part(TRANSFORMER_XL, (2, 3, 4), right("rel_shift"))),
    ("transformer_xl_score_grad_biases_exchanged", "the gradients of u and v exchanged", OURS,
     "u belongs to the content, v to the position", "any input",
     exchanged(TRANSFORMER_XL, -2, -1)),
    ("learned_relative_score_grad_unscaled_bias", "the position's bias beyond the scale", OURS,
     "the scale is on the sum, the position terms included", "D > 1",
     with_outputs(right("learned_relative_score_grad"), {3: unscaled})),
    ("softmax_grad_without_mean", "no row mean in the softmax's gradient", OURS,
     "the gradient of the softmax, w (dw - sum w dw)", "M > 1",
     with_outputs(right("softmax_grad"), {0: without_mean})),
))  # fmt: skip
