"""
Attention by fused Triton kernels: the specification is :mod:`spec.attention`, :mod:`spec.alibi` and
:mod:`spec.relative`.

No N x M tensor exists, forwards or backwards: see :mod:`torch_impl.triton.kernels.attention`. On a
CPU the kernels run in Triton's interpreter, slowly and without a change to the process
(:mod:`torch_impl.triton.kernels.launch`). float32, float16 and bfloat16, all inputs alike.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.attention import (
    check_attention,
    check_learned_attention,
    check_visible_heads,
    check_xl_attention,
)

from ..alibi import slopes
from ..arrays import TENSORS
from ..attention import Keep, Mask
from ..relative import Visible
from ..transforms.autocast import lowered
from ..transforms.derivatives import applied

__all__ = [
    "alibi_attention_triton",
    "learned_relative_attention_triton",
    "scaled_dot_product_attention_triton",
    "transformer_xl_attention_triton",
]


@lowered
def scaled_dot_product_attention_triton(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.attention.scaled_dot_product_attention`."""
    check_attention(TENSORS, query, key, value, mask, keep, p)
    return attention(query, key, value, mask, keep, share=1 / (1 - p))


@lowered
def alibi_attention_triton(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.alibi.alibi_attention`: the bias is made pair by pair from the slopes."""
    check_visible_heads(TENSORS, query, key, value, visible)
    return attention(
        query, key, value, visible, causal=True, slopes=slopes(query.shape[1], query.device).float()
    )


@lowered
def transformer_xl_attention_triton(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    position: Float[Tensor, "H M D"],
    u: Float[Tensor, "H D"],
    v: Float[Tensor, "H D"],
    visible: Visible = None,
    deterministic: bool | None = None,
) -> Float[Tensor, "B H N E"]:
    """
    As :func:`spec.relative.transformer_xl_attention`: the shift is a rolling band of position rows.

    ``deterministic``: gradients of positions by a kernel of their own, without atomic additions;
    None follows PyTorch's setting.
    """
    check_xl_attention(TENSORS, (query, key, value), (position, u, v), visible)
    return _transformer_xl_attention(
        query, key, value, position, u, v, visible, deterministic=deterministic
    )


def _transformer_xl_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    u: Tensor,
    v: Tensor,
    visible: Visible,
    keep: Keep = None,
    p: float = 0.0,
    deterministic: bool | None = None,
) -> Tensor:
    """The same with the draw of a dropout, for the layers."""
    biases: dict[str, Any] = {
        "content": u,
        "distance": v,
        "table": position,
        "first": query.shape[2] - 1,
    }
    return attention(
        query,
        key,
        value,
        visible,
        keep,
        causal=True,
        share=1 / (1 - p),
        deterministic=deterministic,
        **biases,
    )


@lowered
def learned_relative_attention_triton(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    key_pos_embeddings: Float[Tensor, "2P H D"],
    key_pos_bias: Float[Tensor, "2P H"],
    query_pos_bias: Float[Tensor, "H D"],
    align: str,
    visible: Visible = None,
    deterministic: bool | None = None,
) -> Float[Tensor, "B H N E"]:
    """
    As :func:`spec.relative.learned_relative_attention`, by the kernels of
    :func:`transformer_xl_attention_triton`.
    """
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    check_learned_attention(TENSORS, (query, key, value), tables, align, visible)
    return _learned_relative_attention(
        query, key, value, *tables, align, visible, deterministic=deterministic
    )


def _learned_relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embeddings: Tensor,
    table_bias: Tensor,
    query_bias: Tensor,
    align: str,
    visible: Visible,
    keep: Keep = None,
    p: float = 0.0,
    deterministic: bool | None = None,
) -> Tensor:
    """The same with the draw of a dropout, for the layers."""
    N, M = query.shape[2], key.shape[2]
    first = table_bias.shape[0] // 2 - (M - N if align == "end" else 0)
    tables: dict[str, Any] = {
        "content": query_bias,
        "table": embeddings.transpose(0, 1),
        "table_bias": table_bias.T.clone(memory_format=torch.contiguous_format),
        "first": first,
    }
    return attention(
        query, key, value, visible, keep, share=1 / (1 - p), deterministic=deterministic, **tables
    )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    keep: Tensor | None = None,
    causal: bool = False,
    slopes: Tensor | None = None,
    content: Tensor | None = None,
    distance: Tensor | None = None,
    table: Tensor | None = None,
    table_bias: Tensor | None = None,
    first: int = 0,
    share: float = 1.0,
    deterministic: bool | None = None,
) -> Tensor:
    """The operator, with masks of four axes and biases of the query that lie side by side."""
    deterministic = (
        torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic
    )
    check_supported(query, key, value, content, distance, table, table_bias)
    mask, keep = (x if x is None else x[(None,) * (4 - x.ndim)] for x in (mask, keep))
    content, distance = (x if x is None else x.contiguous() for x in (content, distance))
    tensors = query, key, value, mask, keep, slopes, content, distance, table, table_bias
    by = operators()
    options = causal, first, share, deterministic
    return applied(by.Fused, *by.IN_WORDS, *tensors, *options)[0]


def check_supported(*tensors: Tensor | None) -> None:
    """Say what the kernels cannot do, before anything runs."""
    dtypes = {x.dtype for x in tensors if x is not None}
    if len(dtypes) > 1:
        raise NotImplementedError(
            f"inputs of different dtypes: {', '.join(sorted(str(dtype) for dtype in dtypes))}"
        )
    if not dtypes <= {torch.float32, torch.float16, torch.bfloat16}:
        raise NotImplementedError("the kernels compute in float32: no float64")
    if max(x.shape[-1] for x in tensors[:3] if x is not None) > WIDEST:
        raise NotImplementedError(
            f"heads wider than {WIDEST}: a block would not fit into a GPU's shared memory"
        )
    if max(x.shape[-2] for x in tensors if x is not None and x.ndim > 2) > LONGEST:
        raise NotImplementedError(
            f"more than {LONGEST} queries, keys or positions: a grid has no room for their blocks"
        )


WIDEST, LONGEST = 256, 65535 * 16
"""A grid has 65535 blocks along its second axis, of at least 16 rows on a GPU."""


def operators() -> Any:
    """
    The operators: triton is imported when an implementation that needs it is called for the first
    time.
    """
    try:
        from . import operators
    except ImportError as error:
        raise NotImplementedError(f"Triton is not installed: {error}") from None
    return operators
