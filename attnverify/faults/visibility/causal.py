"""
Faults of the causal frontier: which end is aligned, one more, one less, and paths where it is
forgotten.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, gradients

END = "causal_mask, clause 1"


def top_left(N: int, M: int) -> ndarray:
    return attention.causal_mask(N, M, offset=0)


def clamped(N: int, M: int) -> ndarray:
    return attention.causal_mask(N, M, offset=max(M - N, 0))


def ahead_in_later_blocks(N: int, M: int) -> ndarray:
    return np.where(
        np.arange(N)[:, None] < 16,
        attention.causal_mask(N, M),
        attention.causal_mask(N, M, ahead=1),
    )


@fault("causal", "a backward pass whose later query blocks reach past the last key",
       source="flash-attention commit c65b5106", clause="gradients by query",
       reveals="N > 64, M no multiple of 64")  # fmt: skip
def scaled_dot_product_attention_grad_unbounded_blocks(**given: Any) -> Any:
    from attnverify.faults.visibility.tiles import padded_weigh

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        late = np.arange(score.shape[-2])[:, None] >= 64
        return np.where(late, padded_weigh(64)(score, visible), attention.weigh(score, visible))

    return gradients.scaled_dot_product_attention_grad(**given, weigh=weigh)


add_faults("causal", (
    ("causal_mask_ahead", "a frontier one key ahead", "this project", END, "M > 1",
     lambda N, M: attention.causal_mask(N, M, ahead=1)),
    ("transformer_xl_layer_memory_cut", "a causal mask that cuts the memory", "onnx PR #7297",
     "transformer_xl_layer, clause 2", "memory", {"causal": top_left}),
    ("alibi_attention_single_query", "one query aligned at the start",
     "x-transformers commit 4465de5", END, "N = 1, M > 1",
     {"causal": lambda N, M: top_left(N, M) if N == 1 else attention.causal_mask(N, M)}),
    ("transformer_xl_attention_ahead_in_later_blocks", "a frontier one key ahead from query 16 on",
     "this project", END, "N > 17", {"causal": ahead_in_later_blocks}),
))  # fmt: skip
