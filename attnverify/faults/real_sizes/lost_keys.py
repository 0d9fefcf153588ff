"""
Faults of long keys: the last key, the first key or the keys at the edges of tiles are lost once
there are thousands of them, where one key weighs little.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import OURS, add_faults
from attnverify.reference import attention

TAIL = "the sum runs over the keys that the row sees"
ATTENTIONS = (
    "scaled_dot_product_attention",
    "additive_attention",
    "alibi_attention",
    "transformer_xl_attention",
    "learned_relative_attention",
)


def weigh_without(
    lost: Callable[[int], Any], beyond: int, score: ndarray, visible: ndarray
) -> ndarray:
    """The softmax without some of the keys, where there are more than ``beyond``."""
    M = score.shape[-1]
    if beyond >= M:
        return attention.weigh(score, visible)
    kept = np.ones(M, bool)
    kept[lost(M)] = False
    return attention.weigh(score, visible & kept)


def weigh_short(score: ndarray, visible: ndarray) -> ndarray:
    """The softmax whose normaliser ends at key 4096."""
    e = attention.exponentials(score, visible)
    total = e[..., :4096].sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def without(lost: Callable[[int], Any], beyond: int) -> dict[str, Any]:
    return {"weigh": partial(weigh_without, lost, beyond)}


add_faults("blocks", (
    *((f"{operation}_last_key_beyond_2048", "the last key lost beyond 2048 keys", OURS, TAIL,
       "M > 2048", without(lambda M: M - 1, 2048)) for operation in ATTENTIONS),
    *((f"{operation}_first_key_beyond_4096", "the first key lost beyond 4096 keys", OURS, TAIL,
       "M > 4096", without(lambda M: 0, 4096))
      for operation in ("scaled_dot_product_attention", "learned_relative_attention")),
    *((f"{operation}_tile_edges_beyond_4200",
       "the first key of every tile of 128 lost beyond 4200 keys", OURS, TAIL, "M > 4200",
       without(lambda M: slice(128, None, 128), 4200))
      for operation in ("scaled_dot_product_attention", "transformer_xl_attention")),
))  # fmt: skip

add_faults("backward", (
    *((f"{operation}_grad_last_key_beyond_2048",
       "the last key lost beyond 2048 keys in the backward pass", OURS, TAIL, "M > 2048",
       without(lambda M: M - 1, 2048)) for operation in ATTENTIONS),
    *((f"{operation}_grad_tail_beyond_2048",
       "a last tile of 128 keys that is not full, lost beyond 2048 keys in the backward pass",
       OURS, TAIL, "M > 2048, no multiple of 128",
       without(lambda M: slice(M // 128 * 128, None), 2048))
      for operation in ("additive_attention", "learned_relative_attention")),
))  # fmt: skip

add_faults("softmax", (
    ("softmax_tail_outside_the_sum", "a sum over the first 4096 keys", OURS, "softmax", "M > 4096",
     {"weigh": weigh_short}),
))  # fmt: skip
