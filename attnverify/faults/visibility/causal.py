"""
Faults of the causal frontier: which end is aligned, one more, one less, and paths where it is
forgotten.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import fault
from attnverify.reference import attention, gradients, layers

END = "causal_mask, clause 1"


def top_left(N: int, M: int) -> ndarray:
    return attention.causal_mask(N, M, offset=0)


def clamped(N: int, M: int) -> ndarray:
    return attention.causal_mask(N, M, offset=max(M - N, 0))


@fault(
    "causal",
    "a causal mask aligned at the starts",
    source="onnxruntime #29020",
    clause=END,
    reveals="N other than M",
)
def causal_mask_top_left(N: int, M: int) -> Any:
    return top_left(N, M)


@fault(
    "causal",
    "an offset that is never negative",
    source="mlx #2835",
    clause="causal_mask, clause 2",
    reveals="N > M",
)
def causal_mask_clamped(N: int, M: int) -> Any:
    return clamped(N, M)


@fault(
    "causal",
    "a frontier that leaves the own key out",
    source="this project",
    clause=END,
    reveals="M >= N",
)
def causal_mask_strict(N: int, M: int) -> Any:
    return attention.causal_mask(N, M, ahead=-1)


@fault("causal", "a frontier one key ahead", source="this project", clause=END, reveals="M > 1")
def causal_mask_ahead(N: int, M: int) -> Any:
    return attention.causal_mask(N, M, ahead=1)


@fault(
    "causal",
    "a causal mask aligned at the starts",
    source="onnxruntime #29020",
    clause=END,
    reveals="N other than M",
)
def alibi_attention_top_left(**given: Any) -> Any:
    return attention.alibi_attention(**given, causal=top_left)


@fault(
    "causal",
    "a causal mask that cuts the memory",
    source="onnx PR #7297",
    clause=END,
    reveals="memory",
)
def transformer_xl_attention_memory_cut(**given: Any) -> Any:
    return attention.transformer_xl_attention(**given, causal=top_left)


@fault(
    "causal",
    "a causal mask that cuts the memory",
    source="onnx PR #7297",
    clause="transformer_xl_layer, clause 2",
    reveals="memory",
)
def transformer_xl_layer_memory_cut(**given: Any) -> Any:
    return layers.transformer_xl_layer(**given, causal=top_left)


@fault(
    "causal",
    "an offset that is never negative",
    source="mlx #2835",
    clause="transformer_xl_attention, clause 2",
    reveals="N > M",
)
def transformer_xl_attention_clamped(**given: Any) -> Any:
    return attention.transformer_xl_attention(**given, causal=clamped)


@fault(
    "causal",
    "one query aligned at the start",
    source="x-transformers commit 4465de5",
    clause=END,
    reveals="N = 1, M > 1",
)
def alibi_attention_single_query(**given: Any) -> Any:
    return attention.alibi_attention(
        **given, causal=lambda N, M: top_left(N, M) if N == 1 else attention.causal_mask(N, M)
    )


@fault("causal", "a frontier one key ahead", source="this project", clause=END, reveals="M > 1")
def alibi_attention_ahead(**given: Any) -> Any:
    return attention.alibi_attention(
        **given, causal=lambda N, M: attention.causal_mask(N, M, ahead=1)
    )


@fault(
    "causal",
    "a frontier one key ahead from query 16 on",
    source="this project",
    clause=END,
    reveals="N > 17",
)
def transformer_xl_attention_ahead_in_later_blocks(**given: Any) -> Any:
    def causal(N: int, M: int) -> ndarray:
        return np.where(
            np.arange(N)[:, None] < 16,
            attention.causal_mask(N, M),
            attention.causal_mask(N, M, ahead=1),
        )

    return attention.transformer_xl_attention(**given, causal=causal)


@fault(
    "causal",
    "a backward pass that is always causal",
    source="triton #4541",
    clause="scaled_dot_product_attention_grad",
    reveals="M > 1",
)
def scaled_dot_product_attention_grad_always_causal(**given: Any) -> Any:
    def see(score: ndarray, mask: Any) -> Any:
        score, visible = attention.see(score, mask)
        return score, visible & attention.causal_mask(*score.shape[-2:])

    return gradients.scaled_dot_product_attention_grad(**given, see=see)


@fault(
    "causal",
    "a backward pass aligned at the starts",
    source="this project",
    clause=END,
    reveals="N other than M",
)
def alibi_attention_grad_top_left(**given: Any) -> Any:
    return gradients.alibi_attention_grad(**given, causal=top_left)


@fault(
    "causal",
    "a backward pass whose later query blocks reach past the last key",
    source="flash-attention commit c65b5106",
    clause="gradients by query",
    reveals="N > 64, M no multiple of 64",
)
def scaled_dot_product_attention_grad_unbounded_blocks(**given: Any) -> Any:
    from attnverify.faults.visibility.tiles import padded_weigh

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        late = np.arange(score.shape[-2])[:, None] >= 64
        return np.where(late, padded_weigh(64)(score, visible), attention.weigh(score, visible))

    return gradients.scaled_dot_product_attention_grad(**given, weigh=weigh)
