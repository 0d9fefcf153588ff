"""Controls of the backward pass: right gradients, computed in unusual ways."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.arithmetic.softmax import online
from attnverify.reference import attention, gradients
from tests.attnverify.faults.controls.registry import add_controls, control


@control("backward", "the row mean from d_output and the output")
def scaled_dot_product_attention_grad_mean_of_output(**given: Any) -> Any:
    inputs = {name: x for name, x in given.items() if name != "d_output"}
    mean = (given["d_output"] * attention.scaled_dot_product_attention(**inputs)).sum(
        axis=-1, keepdims=True
    )
    return gradients.scaled_dot_product_attention_grad(**given, row_mean=lambda w, d: mean)


def query_by_query(d: ndarray, visible: ndarray, query: ndarray) -> Any:
    rows = (slice(i, i + 1) for i in range(d.shape[2]))
    return sum(gradients.key_grad(d[:, :, i], visible[:, :, i], query[:, :, i]) for i in rows)


def scattered(d: ndarray, sees: ndarray, t: ndarray, rows: int) -> tuple[ndarray, ndarray]:
    d_rows, read = np.zeros((*d.shape[:3], rows)), np.zeros((*d.shape[:3], rows), bool)
    for i, j in np.ndindex(t.shape):
        d_rows[:, :, i, t[i, j]] += d[:, :, i, j]
        read[:, :, i, t[i, j]] |= sees[:, :, i, j]
    return d_rows, read


@control("backward",
         "the gradients of the parameters added up batch entry by batch entry")  # fmt: skip
def multi_head_attention_grad_by_batch_entry(**given: Any) -> Any:
    whole = CATALOGUE["multi_head_attention_grad"].reference
    found = []
    for b in range(len(given["query"])):
        alone = {
            name: x[b : b + 1] for name, x in given.items() if name in BATCH_FIRST and x is not None
        }
        mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
        if mask is not None and mask.ndim == 3:
            alone["attn_mask"] = mask.reshape(-1, given["num_heads"], *mask.shape[1:])[b]
        if padding is not None:
            alone["key_padding_mask"] = padding[b : b + 1]
        found.append(whole(**given | alone))
    together = [np.concatenate([each[i] for each in found]) for i in range(3)]
    d_parameters = {name: sum(each[3][name] for each in found) for name in found[0][3]}
    rest = (
        [
            np.concatenate([each[4] for each in found])
            if found[0][4].ndim == 3
            else sum(each[4] for each in found)
        ]
        if len(found[0]) > 4
        else []
    )
    return *together, d_parameters, *rest


BATCH_FIRST = ("d_output", "d_weights", "query", "key", "value", "keep")


add_controls("backward", (
    ("transformer_xl_attention_grad_online", "weights of an online softmax in the backward pass",
     {"weigh": lambda s, v: np.where(v, online(s, v, block=5), 0)}),
    ("additive_attention_grad_cosh", "the slope of tanh by cosh",
     {"slope": lambda z, t: 1 / np.cosh(np.clip(z, -300, 300)) ** 2}),
    ("alibi_attention_grad_query_by_query", "the gradients of keys added up query by query",
     {"key_grad": query_by_query}),
    ("learned_relative_attention_grad_scattered",
     "the gradients of a table scattered pair by pair", {"gather": scattered}),
))  # fmt: skip
