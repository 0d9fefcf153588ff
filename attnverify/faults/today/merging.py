"""Faults of merging parts, and of its gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.references import reference_of
from attnverify.faults.registry import add_conventional, add_faults

merge, gradient = reference_of("merge_attention"), reference_of("merge_attention_grad")

ABSENT, EMPTY, LSE, ONE = (f"merge_attention, clause {number}" for number in (1, 2, 4, 3))
BACK = "merge_attention_grad"


def changed(change: Callable[[ndarray, ndarray], tuple[ndarray, ndarray]]) -> Any:
    """Other parts merged."""
    return lambda outputs, lses: merge(*change(outputs, lses))


def phantom(outputs: ndarray, lses: ndarray) -> tuple[ndarray, ndarray]:
    """A first part of lse -5e4 whose output is 0."""
    zero, low = np.zeros_like(outputs[:1]), np.full_like(lses[:1], -5e4)
    return np.concatenate([zero, outputs]), np.concatenate([low, lses])


def averaged(outputs: ndarray, lses: ndarray) -> Any:
    """The mean of the parts that are there."""
    there = (lses > -np.inf)[..., None]
    mean = np.where(there, outputs, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    return mean, merge(outputs, lses)[1]


def unguarded_maximum(outputs: ndarray, lses: ndarray) -> Any:
    """Exponentials as they are, with no maximum taken from them."""
    e = np.exp(lses)
    total = e.sum(axis=0)
    shown = np.where(e[..., None] > 0, outputs, 0)
    return (e[..., None] * shown).sum(axis=0) / total[..., None], np.log(total)


def unweighted_sum(outputs: ndarray, lses: ndarray) -> Any:
    """Parts that are added with exp(lse_c - max), undivided."""
    top = lses.max(axis=0)
    e = np.where(lses > -np.inf, np.exp(lses - np.where(top > -np.inf, top, 0)), 0)
    output = (e[..., None] * np.where(e[..., None] > 0, outputs, 0)).sum(axis=0)
    return output, merge(outputs, lses)[1]


def transposed(outputs: ndarray, lses: ndarray) -> tuple[ndarray, ndarray]:
    """The lse of [H N] read as [N H]."""
    C, B, H, N = lses.shape
    return outputs, lses.swapaxes(2, 3).reshape(C, B, H, N)


def shifted(found: Any, by: Any) -> Any:
    return found[0], found[1] + by


def weights_of(lses: ndarray) -> ndarray:
    lse = merge(np.zeros((*lses.shape, 1)), lses)[1]
    share: ndarray = np.exp(lses - np.where(lse > -np.inf, lse, 0))
    return share


def without_mean(d_output: ndarray, d_lse: ndarray, outputs: ndarray, lses: ndarray) -> Any:
    """exp(lse_c - lse) dO . o_c, from which the mean is not taken."""
    d_outputs, d_lses = gradient(d_output, d_lse, outputs, lses)
    mean = (d_output * merge(outputs, lses)[0]).sum(axis=-1)
    return d_outputs, d_lses + weights_of(lses) * mean


def through_empty_rows(d_output: ndarray, d_lse: ndarray, outputs: ndarray, lses: ndarray) -> Any:
    """What arrives at the lse handed on to parts that are all absent."""
    d_outputs, d_lses = gradient(d_output, d_lse, outputs, lses)
    return d_outputs, np.where((lses == -np.inf).all(axis=0), d_lse, d_lses)


add_faults("softmax", (
    ("merge_attention_phantom_part", "a part of lse -5e4 and output 0 that nobody gave",
     "FlashInfer, cascade.py", LSE, "lses below -5e4", changed(phantom)),
    ("merge_attention_averaged", "the mean of the parts", "this project", ONE, "unlike lses",
     averaged),
    ("merge_attention_without_maximum", "exponentials with no maximum taken from them",
     "this project", LSE, "lses beyond 88", unguarded_maximum),
    ("merge_attention_lse_of_maximum", "the largest lse for that of all", "this project",
     LSE, "C > 1", lambda outputs, lses: (merge(outputs, lses)[0], lses.max(axis=0))),
    ("merge_attention_undivided", "parts that are not divided by their sum", "this project",
     ONE, "C > 1", unweighted_sum),
    ("merge_attention_next_head", "the lse of another head", "local-inference-lab/vllm #17",
     ONE, "H > 1",
     changed(lambda outputs, lses: (outputs, np.roll(lses, 1, axis=2)))),
    ("merge_attention_transposed_lse", "an lse of [H N] read as [N H]", "vllm-xpu-kernels #479",
     ONE, "H > 1, N > 1", changed(transposed)),
    ("merge_attention_part_left_out", "the last of three parts left out", "this project", ONE,
     "C > 2",
     changed(lambda *parts: tuple(x[:-1] if len(x) > 2 else x for x in parts))),
    ("merge_attention_absent_at_zero", "absent parts of lse 0 where others lie below",
     "this project", ABSENT, "absent parts", changed(lambda outputs, lses: (np.where(
         (lses == -np.inf)[..., None], 0, outputs), np.where(lses == -np.inf, -100.0, lses)))),
))  # fmt: skip
add_faults("backward", (
    ("merge_attention_grad_without_lse", "what arrives at the lse left out",
     "flash-attention #404", f"{BACK}, clause 1", "d_lse",
     lambda d_output, d_lse, outputs, lses: gradient(d_output, 0 * d_lse, outputs, lses)),
    ("merge_attention_grad_lse_alone", "lses that the output does not reach", "this project",
     BACK, "C > 1",
     lambda d_output, d_lse, outputs, lses: (gradient(d_output, d_lse, outputs, lses)[0],
      gradient(0 * d_output, d_lse, outputs, lses)[1])),
    ("merge_attention_grad_without_mean", "dP in place of dP - D", "this project", BACK,
     "any", without_mean),
    ("merge_attention_grad_of_empty_rows", "the gradient of an lse that no part has",
     "this project", f"{BACK}, clause 2", "rows of absent parts", through_empty_rows),
    ("merge_attention_grad_equal_shares", "what arrives at the lse in equal shares",
     "this project", f"{BACK}, clause 1", "unlike lses",
     lambda d_output, d_lse, outputs, lses: shifted(gradient(d_output, d_lse, outputs, lses),
      np.where(lses > -np.inf, d_lse * (1 / len(lses) - weights_of(lses)), 0))),
    ("merge_attention_grad_base_two", "a gradient of logarithms to base 2",
     "attention-gym #200", BACK, "any",
     lambda d_output, d_lse, outputs, lses: (gradient(d_output, d_lse, outputs, lses)[0],
      gradient(d_output, d_lse, outputs, lses)[1] * float(np.log(2.0)))),
))  # fmt: skip
add_conventional("softmax", (
    ("merge_attention_base_two", "lse base", "2", "flashinfer #4547", LSE, "C > 1"),
    ("merge_attention_base_two_returned", "lse base", "2 returned", "pytorch #181645", LSE,
     "lse other than 0"),
    ("merge_attention_nan_of_empty_rows", "a row of no key", "NaN", "vllm #39148", EMPTY,
     "rows of absent parts"),
    ("merge_attention_plus_infinity", "a row of no key", "plus infinity", "flashinfer #3943",
     EMPTY, "rows of absent parts"),
    ("merge_attention_finite_empty_rows", "a row of no key", "-5e4", "FlashInfer, cascade.py",
     EMPTY, "rows of absent parts"),
    ("merge_attention_zero_times_nan", "absent parts", "multiplied by 0", "flashinfer #4051",
     ABSENT, "NaN in absent parts"),
))  # fmt: skip
