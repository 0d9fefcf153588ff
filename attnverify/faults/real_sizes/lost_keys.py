"""
Faults of long keys: the last key, the first key or the keys at the edges of tiles are lost once
there are thousands of them, where one key weighs little.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.real_sizes.table import add_fault
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


for operation in ATTENTIONS:
    for name, backward in ((operation, ""), (f"{operation}_grad", " in the backward pass")):
        add_fault(
            name,
            "last_key_beyond_2048",
            {"weigh": partial(weigh_without, lambda M: M - 1, 2048)},
            kind="blocks" if not backward else "backward",
            words=f"the last key lost beyond 2048 keys{backward}",
            clause=TAIL,
            reveals="M > 2048",
        )

for operation in ("scaled_dot_product_attention", "learned_relative_attention"):
    add_fault(
        operation,
        "first_key_beyond_4096",
        {"weigh": partial(weigh_without, lambda M: 0, 4096)},
        kind="blocks",
        words="the first key lost beyond 4096 keys",
        clause=TAIL,
        reveals="M > 4096",
    )

for operation in ("scaled_dot_product_attention", "transformer_xl_attention"):
    add_fault(
        operation,
        "tile_edges_beyond_4200",
        {"weigh": partial(weigh_without, lambda M: slice(128, None, 128), 4200)},
        kind="blocks",
        words="the first key of every tile of 128 lost beyond 4200 keys",
        clause=TAIL,
        reveals="M > 4200",
    )

for operation in ("additive_attention_grad", "learned_relative_attention_grad"):
    add_fault(
        operation,
        "tail_beyond_2048",
        {"weigh": partial(weigh_without, lambda M: slice(M // 128 * 128, None), 2048)},
        kind="backward",
        words="a last tile of 128 keys that is not full, lost beyond 2048 keys in the backward "
        "pass",
        clause=TAIL,
        reveals="M > 2048, no multiple of 128",
    )


def weigh_short(score: ndarray, visible: ndarray) -> ndarray:
    """The softmax whose normaliser ends at key 4096."""
    e = attention.exponentials(score, visible)
    total = e[..., :4096].sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


add_fault(
    "softmax",
    "tail_outside_the_sum",
    {"weigh": weigh_short},
    kind="softmax",
    words="a sum over the first 4096 keys",
    clause="softmax",
    reveals="M > 4096",
)
