"""Invalid calls that are let through, or refused with something else than ValueError."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.pytrees import map_leaves
from attnverify.faults.adapter import is_float, widened
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, layers

REFUSED = "an invalid call is a ValueError"


def checked_but(operation: Any, given: Any, name: str, mend: Any) -> Any:
    """
    The operation with one argument mended instead of refused; what else is wrong is refused as the
    specification does.
    """
    from attnverify.catalogue.operation import CATALOGUE

    mended = given | {name: mend(given[name])}
    CATALOGUE[operation.__name__].reference(**map_leaves(widened, mended))
    return operation(**map_leaves(widened, mended))


@fault("refusals", "a table that is too small, its slice wrapped",
       source="labml's page, relative_mha",
       clause="learned_relative_score, clause 4", reveals="N or M beyond P",
       unchecked=True)  # fmt: skip
def learned_relative_attention_small_table(**given: Any) -> Any:
    N, M, P = given["query"].shape[-2], given["key"].shape[-2], len(given["key_pos_bias"]) // 2
    if 0 < P < max(N, M):
        more = (max(N, M) - P,) * 2
        for name in ("key_pos_embeddings", "key_pos_bias"):
            given[name] = np.pad(
                given[name], [more] + [(0, 0)] * (given[name].ndim - 1), mode="edge"
            )
    return checked_but(attention.learned_relative_attention, given, "align", lambda align: align)


@fault("refusals", "a head count that does not divide the width",
       source="this project", clause=REFUSED, reveals="num_heads = 5, F = 12",
       unchecked=True)  # fmt: skip
def multi_head_attention_any_heads(num_heads: Any, **given: Any) -> Any:
    F = (
        given["query"].shape[-1]
        if hasattr(given["query"], "shape") and given["query"].ndim == 3
        else 1
    )
    fits = isinstance(num_heads, int) and num_heads > 0
    attn_mask = given.pop("attn_mask")
    mend = lambda H: next(h for h in range(H, 0, -1) if F % h == 0) if fits else H
    return checked_but(
        layers.multi_head_attention,
        given | {"num_heads": num_heads, "attn_mask": attn_mask},
        "num_heads",
        mend,
    )


@fault("refusals", "scores of integers", source="this project", clause=REFUSED,
       reveals="an integer score", unchecked=True)  # fmt: skip
def softmax_of_integers(score: Any, mask: Any = None) -> Any:
    integers = score.dtype.kind == "i"
    return checked_but(
        attention.softmax,
        {"score": score, "mask": mask},
        "score",
        lambda s: s.astype(np.float64) if integers else s,
    )


@fault("refusals", "a value longer than the keys, cut", source="pytorch PR #193728",
       clause=REFUSED, reveals="value longer than key", unchecked=True)  # fmt: skip
def scaled_dot_product_attention_value_cut(key: Any, value: Any, **given: Any) -> Any:
    M = min(key.shape[-2], value.shape[-2])
    return checked_but(
        attention.scaled_dot_product_attention,
        given | {"key": key[..., :M, :], "value": value},
        "value",
        lambda x: x[..., :M, :],
    )


@fault("refusals", "padding of floats", source="mlverse/torch PR #1208",
       clause="merge_masks: key_padding_mask is bool",
       reveals="a float key_padding_mask", unchecked=True)  # fmt: skip
def merge_masks_float_padding(attn_mask: Any, key_padding_mask: Any, num_heads: Any) -> Any:
    given = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "num_heads": num_heads}
    return checked_but(
        attention.merge_masks, given, "key_padding_mask", lambda k: k != 0 if is_float(k) else k
    )


@fault("refusals", "assertions in place of ValueError", source="this project",
       clause=REFUSED, reveals="any invalid call", unchecked=True)  # fmt: skip
def shift_right_asserts(x: Any) -> Any:
    assert isinstance(x, ndarray) and widened(x).dtype.kind == "f" and x.ndim >= 2 and x.size
    return attention.shift_right(widened(x))


add_faults("refusals", (
    ("update_mems_negative_length", "a negative memory length", "this project", REFUSED,
     "mem_len = -1",
     lambda hids, mems, mem_len: checked_but(attention.update_mems, {"hids": hids, "mems": mems,
      "mem_len": mem_len}, "mem_len", abs), {"unchecked": True}),
    ("dropout_of_everything", "p = 1", "this project", "dropout, clause 2", "p = 1",
     lambda weights, keep, p: checked_but(attention.dropout, {"weights": weights, "keep": keep,
      "p": p}, "p", lambda p: 0.5 if p == 1 else p), {"unchecked": True}),
    ("sinusoidal_positions_odd_width", "an odd width", "this project",
     "sinusoidal_positions, clause 2", "F odd",
     lambda M, F: checked_but(attention.sinusoidal_positions, {"M": M, "F": F}, "F", lambda F: F +
      F % 2), {"unchecked": True}),
    ("transformer_xl_layer_negative_eps", "a negative eps", "this project", REFUSED, "eps = -1",
     lambda eps=1e-5, **given: checked_but(layers.transformer_xl_layer, given | {"eps": eps},
      "eps", abs), {"unchecked": True}),
    ("learned_relative_score_any_alignment", "an alignment that nobody knows taken for start",
     "this project", REFUSED, "align middle",
     lambda align, **given: checked_but(attention.learned_relative_score, given | {"align":
      align}, "align", lambda a: a if a == "end" else "start"), {"unchecked": True}),
    ("alibi_attention_float_visible", "visible of floats", "this project", REFUSED,
     "a float visible", lambda visible=None, **given: checked_but(attention.alibi_attention,
     given | {"visible": visible}, "visible", (lambda v: v != 0 if is_float(v) else v)),
     {"unchecked": True}),
))  # fmt: skip
