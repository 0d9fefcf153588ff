"""
Layers: the whole systems of the source documents, each a function of its inputs and of one mapping
from name to array.

Weights are as in ``torch.nn.Linear``, [out in]; an absent bias is zero; a name that misses or that
nobody knows is refused. The batch comes first here, always. A module of torch_impl called on its
own ``state_dict`` equals the function of the same name.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from attnverify.contract.arguments import check_draw
from attnverify.contract.layers import (
    D_MULTI_HEAD,
    D_SELF,
    D_X,
    X,
    check_alibi,
    check_memory_gradients,
    check_multi_head,
    check_relative,
    check_self_attention,
    check_xl_layer,
    check_xl_stack,
)
from attnverify.contract.masks import check_layer_masks
from attnverify.contract.shapes import check

from .alibi import get_alibi_biases
from .arrays import ARRAYS
from .attention import (
    Keep,
    Mask,
    attend,
    attend_grad,
    dropout,
    mask_grad,
    masked,
    products_grad,
    softmax,
)
from .domains import Align, Eps, MemoryLength
from .masks import merge_masks
from .memory import Mems, update_mems
from .projections import (
    Parameters,
    feed_forward,
    feed_forward_grad,
    in_order,
    layer_norm,
    layer_norm_grad,
    linear,
    linear_grad,
    merge_heads,
    present,
    split_heads,
)
from .relative import (
    Visible,
    attend_learned_relative,
    attend_learned_relative_grad,
    attend_transformer_xl,
    attend_transformer_xl_grad,
    causal_and,
    sinusoidal_positions,
)
from .scores import scaled_dot_product_score

__all__ = [
    "alibi_multi_head_attention",
    "alibi_multi_head_attention_grad",
    "multi_head_attention",
    "multi_head_attention_grad",
    "multi_head_self_attention",
    "multi_head_self_attention_grad",
    "relative_multi_head_attention",
    "relative_multi_head_attention_grad",
    "self_attention",
    "self_attention_grad",
    "transformer_xl",
    "transformer_xl_grad",
    "transformer_xl_layer",
    "transformer_xl_layer_grad",
]


def self_attention(
    x: Float[ndarray, "B N F"],
    parameters: Parameters,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N E"]:
    r"""
    A sequence that attends to itself, with one head.

    .. math:: o = \text{softmax}\Big(\frac{(x W_Q^\top)(x W_K^\top)^\top}{\sqrt K} +
              \text{mask}\Big)\, x W_V^\top

    1. ``parameters``: w_query [K F], w_key [K F], w_value [E F]. There are no biases.
    2. The scale is that of the key width K. The mask broadcasts to [B N N].
    3. ``keep`` and ``p`` are the draw of a dropout on the weights
       (:func:`attnverify.spec.attention.dropout`); ``keep`` broadcasts to [B N N].

    >>> x, one = np.array([[[0.0], [2.0]]]), np.array([[1.0]])
    >>> self_attention(x, {"w_query": 0 * one, "w_key": one, "w_value": one}).ravel().tolist()
    [1.0, 1.0]

    Source: Vaswani et al. 2017, section 3.2.1, with one head (seed 001, section 3).
    """
    check_self_attention(ARRAYS, x, parameters, mask, keep, p)
    query, key, value = (
        np.einsum("bnf,gf->bng", x, parameters[name]) for name in ("w_query", "w_key", "w_value")
    )
    return attend(scaled_dot_product_score(query, key), value, mask, keep, p)


def self_attention_grad(
    d_output: Float[ndarray, "B N E"],
    x: Float[ndarray, "B N F"],
    parameters: Parameters,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    r"""
    The gradients of :func:`self_attention` by x, by the parameters, and by the mask if it is float.

    With q, k, v the projections of x and :math:`\bar q, \bar k, \bar v` their gradients, those of
    the attention between them,

    .. math:: \bar x = \bar q W_Q + \bar k W_K + \bar v W_V, \qquad \bar W_Q = \sum_{bi} \bar
              q_{bi} x_{bi}^\top

    and likewise for the other two weights.

    1. x is query, key and value: its gradient is the sum over the three.
    2. The gradients of the parameters are a mapping with their names, each in the shape of its
       parameter, summed over the batch.

    >>> x, one = np.array([[[0.0], [2.0]]]), np.array([[1.0]])
    >>> d_x, d_parameters = self_attention_grad(
    ...     np.ones((1, 2, 1)), x, {"w_query": 0 * one, "w_key": one, "w_value": one}
    ... )
    >>> d_x.ravel().tolist(), d_parameters["w_value"].item()
    ([1.0, 1.0], 2.0)

    Source: Vaswani et al. 2017, section 3.2.1, by the chain rule.
    """
    at = check_self_attention(ARRAYS, x, parameters, mask, keep, p)
    check(ARRAYS, D_SELF, d_output, **at)
    names = ("w_query", "w_key", "w_value")
    query, key, value = (np.einsum("bnf,gf->bng", x, parameters[name]) for name in names)
    score = scaled_dot_product_score(query, key)
    d_score, d_value = attend_grad(d_output, score, value, mask, keep, p)
    scaled, visible = d_score / np.sqrt(key.shape[-1]), masked(score, mask)[1]
    d_projected = dict(
        zip(names, (*products_grad(scaled, visible, query, key), d_value), strict=True)
    )
    d_x = sum(np.einsum("bng,gf->bnf", d, parameters[name]) for name, d in d_projected.items())
    d_parameters = {name: np.einsum("bng,bnf->gf", d, x) for name, d in d_projected.items()}
    return d_x, {name: d_parameters[name] for name in parameters}, *mask_grad(d_score, mask)


def multi_head_attention(
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B M F"],
    value: Float[ndarray, "B M F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[ndarray, "... N M"] | Float[ndarray, "... N M"] | None = None,
    key_padding_mask: Bool[ndarray, "B M"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[ndarray, "B N F"], Float[ndarray, "B H N M"]]:
    r"""
    H attentions side by side on D = F / H columns each, projected together; also their weights.

    .. math:: o = \big[\,\text{attention}_0 ; \dots ; \text{attention}_{H-1}\,\big] W_O^\top + b_O,
              \qquad
              \text{attention}_h = \text{softmax}\Big(\frac{q_h k_h^\top}{\sqrt D} +
              \text{mask}_h\Big) v_h

    1. ``parameters``: q_proj, k_proj, v_proj and out_proj, each ``.weight`` [F F] and ``.bias`` [F]
       (absent = 0).
    2. Head h has the columns h D ... h D + D - 1 of the projections; the scale is that of D.
    3. The masks are merged by :func:`attnverify.spec.masks.merge_masks`: True = hidden.
    4. The weights come per head, [B H N M], not averaged. A row that sees no key has weights 0, and
       the output bias alone as its output.
    5. ``keep`` and ``p`` are the draw of a dropout on the weights
       (:func:`attnverify.spec.attention.dropout`); ``keep`` broadcasts to [B H N M]. The weights
       that are returned are those behind the dropout.

    >>> x, one = np.array([[[1.0, 2.0], [3.0, 6.0]]]), np.eye(2)
    >>> parameters = {
    ...     "q_proj.weight": 0 * one,
    ...     "k_proj.weight": one,
    ...     "v_proj.weight": one,
    ...     "out_proj.weight": one,
    ... }
    >>> output, weights = multi_head_attention(
    ...     x, x, x, parameters, num_heads=2, key_padding_mask=np.array([[False, True]])
    ... )
    >>> output[0].tolist(), weights.shape
    ([[1.0, 2.0], [1.0, 2.0]], (1, 2, 2, 2))

    Source: Vaswani et al. 2017, section 3.2.2 (seed 001, section 4).
    """
    check_multi_head(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    names = {"q_proj": query, "k_proj": key, "v_proj": value}
    q, k, v = (split_heads(linear(x, parameters, name), num_heads) for name, x in names.items())
    score = scaled_dot_product_score(q, k)
    check_layer_masks(ARRAYS, attn_mask, key_padding_mask, *score.shape)
    mask = merge_masks(attn_mask, key_padding_mask, num_heads)
    attended = merge_heads(attend(score, v, mask, keep, p))
    return linear(attended, parameters, "out_proj"), dropout(softmax(score, mask), keep, p)


def multi_head_attention_grad(
    d_output: Float[ndarray, "B N F"],
    d_weights: Float[ndarray, "B H N M"],
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B M F"],
    value: Float[ndarray, "B M F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[ndarray, "... N M"] | Float[ndarray, "... N M"] | None = None,
    key_padding_mask: Bool[ndarray, "B M"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    r"""
    The gradients of :func:`multi_head_attention` by query, key, value, the parameters, and by
    attn_mask if it is float; ``d_weights`` is what arrives at the weights.

    With a the heads side by side, and :math:`\bar q, \bar k, \bar v` the gradients of the attention
    between the projections, from :math:`\bar a` and from what arrives at its weights,

    .. math:: \bar a = \bar o W_O, \qquad \overline{\text{query}} = \bar q W_Q, \qquad
              \bar W_O = \sum_{bi} \bar o_{bi} a_{bi}^\top, \qquad \bar b_O = \sum_{bi} \bar o_{bi}

    and likewise for key and value, and for the other weights and biases.

    1. The gradients of the parameters are a mapping with their names, each in the shape of its
       parameter; a bias that is absent has none.
    2. A key that no query of any head sees is absent: its gradient is exactly 0, and it gives
       nothing to the weights.
    3. The gradient of a mask that all heads and batch entries share is the sum over them.
    4. What arrives at the weights passes the dropout with what arrives at the output: both come
       behind it.

    >>> x, one = np.array([[[1.0, 2.0], [3.0, 6.0]]]), np.eye(2)
    >>> parameters = {
    ...     "q_proj.weight": 0 * one,
    ...     "k_proj.weight": one,
    ...     "v_proj.weight": one,
    ...     "out_proj.weight": one,
    ... }
    >>> d_query, d_key, d_value, d_parameters = multi_head_attention_grad(
    ...     np.ones((1, 2, 2)), np.zeros((1, 2, 2, 2)), x, x, x, parameters, num_heads=2
    ... )
    >>> d_value[0].tolist(), d_parameters["out_proj.weight"].tolist()
    ([[1.0, 1.0], [1.0, 1.0]], [[4.0, 8.0], [4.0, 8.0]])

    Source: Vaswani et al. 2017, section 3.2.2, by the chain rule.
    """
    at = check_multi_head(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    check(ARRAYS, D_MULTI_HEAD, d_output, d_weights, **at)
    inputs = {"q_proj": query, "k_proj": key, "v_proj": value}
    q, k, v = (split_heads(linear(x, parameters, name), num_heads) for name, x in inputs.items())
    score = scaled_dot_product_score(q, k)
    check_layer_masks(ARRAYS, attn_mask, key_padding_mask, *score.shape)
    mask = merge_masks(attn_mask, key_padding_mask, num_heads)
    visible = masked(score, mask)[1]
    attended = merge_heads(attend(score, v, mask, keep, p))
    d_attended, d_out_proj = linear_grad(d_output, attended, parameters, "out_proj")
    d_score, d_v = attend_grad(
        split_heads(d_attended, num_heads), score, v, mask, keep, p, d_weights
    )
    d_q, d_k = products_grad(d_score / np.sqrt(q.shape[-1]), visible, q, k)
    d_query, d_q_proj = linear_grad(merge_heads(d_q), query, parameters, "q_proj")
    d_key, d_k_proj = linear_grad(merge_heads(d_k), present(key, visible), parameters, "k_proj")
    d_value, d_v_proj = linear_grad(merge_heads(d_v), present(value, visible), parameters, "v_proj")
    d_parameters = d_q_proj | d_k_proj | d_v_proj | d_out_proj
    per_head = attn_mask is not None and attn_mask.ndim == 3
    d_mask = mask_grad(d_score.reshape(-1, *score.shape[2:]) if per_head else d_score, attn_mask)
    return d_query, d_key, d_value, in_order(d_parameters, parameters), *d_mask


def multi_head_self_attention(
    x: Float[ndarray, "B N F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[ndarray, "... N N"] | Float[ndarray, "... N N"] | None = None,
    key_padding_mask: Bool[ndarray, "B N"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[ndarray, "B N F"], Float[ndarray, "B H N N"]]:
    r"""
    Multi-head attention of a sequence to itself: query, key and value are the same x.

    .. math:: \text{multi\_head\_attention}(x, x, x)

    1. It takes the parameters and masks of :func:`multi_head_attention` and returns the same pair.

    >>> x, one = np.array([[[1.0, 2.0], [3.0, 6.0]]]), np.eye(2)
    >>> parameters = {
    ...     "q_proj.weight": 0 * one,
    ...     "k_proj.weight": one,
    ...     "v_proj.weight": one,
    ...     "out_proj.weight": one,
    ... }
    >>> multi_head_self_attention(x, parameters, num_heads=2)[0][0].tolist()
    [[2.0, 4.0], [2.0, 4.0]]

    Source: Vaswani et al. 2017, section 3.2.3 (seed 001, section 4.4).
    """
    check(ARRAYS, X, x)
    return multi_head_attention(
        x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p
    )


def multi_head_self_attention_grad(
    d_output: Float[ndarray, "B N F"],
    d_weights: Float[ndarray, "B H N N"],
    x: Float[ndarray, "B N F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[ndarray, "... N N"] | Float[ndarray, "... N N"] | None = None,
    key_padding_mask: Bool[ndarray, "B N"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    r"""
    The gradients of :func:`multi_head_self_attention` by x, by the parameters, and by attn_mask if
    it is float.

    .. math:: \bar x = \overline{\text{query}} + \overline{\text{key}} + \overline{\text{value}}

    1. x is query, key and value: its gradient is the sum over the three.
    2. The rest is that of :func:`multi_head_attention_grad`.

    >>> x, one = np.array([[[1.0, 2.0], [3.0, 6.0]]]), np.eye(2)
    >>> parameters = {
    ...     "q_proj.weight": 0 * one,
    ...     "k_proj.weight": one,
    ...     "v_proj.weight": one,
    ...     "out_proj.weight": one,
    ... }
    >>> d_x, d_parameters = multi_head_self_attention_grad(
    ...     np.ones((1, 2, 2)), np.zeros((1, 2, 2, 2)), x, parameters, num_heads=2
    ... )
    >>> d_x[0].tolist()
    [[1.0, 1.0], [1.0, 1.0]]

    Source: the forward operation (seed 001, section 4.4), by the chain rule.
    """
    check(ARRAYS, X, x)
    d_query, d_key, d_value, *rest = multi_head_attention_grad(
        d_output, d_weights, x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p
    )
    return d_query + d_key + d_value, *rest


def relative_multi_head_attention(
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B M F"],
    value: Float[ndarray, "B M F"],
    parameters: Parameters,
    num_heads: int,
    align: Align,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N F"]:
    r"""
    labml's relative multi-head attention: learned relative attention between projections.

    .. math:: o = a W_O^\top + b_O, \qquad
              a = \text{learned\_relative\_attention}(q W_Q^\top, k W_K^\top, v W_V^\top + b_V)

    1. ``parameters``: query.linear.weight and key.linear.weight [F F], without biases (the score
       has its own); value.linear and output with ``.weight`` [F F] and ``.bias`` [F] (absent = 0);
       key_pos_embeddings [2P H D], key_pos_bias [2P H], query_pos_bias [H D].
    2. ``align`` chooses between labml's two slices, as in
       :func:`attnverify.spec.relative.learned_relative_score`; ``visible`` broadcasts to [B H N M].
    3. ``keep`` and ``p`` are the draw of a dropout on the weights
       (:func:`attnverify.spec.attention.dropout`); ``keep`` broadcasts to [B H N M].

    >>> x, one = np.array([[[1.0], [3.0]]]), np.eye(1)
    >>> weights = {
    ...     f"{name}.weight": one
    ...     for name in ("query.linear", "key.linear", "value.linear", "output")
    ... }
    >>> tables = {
    ...     "key_pos_embeddings": np.zeros((4, 1, 1)),
    ...     "key_pos_bias": np.zeros((4, 1)),
    ...     "query_pos_bias": np.zeros((1, 1)),
    ... }
    >>> relative_multi_head_attention(
    ...     0 * x, x, x, weights | tables, num_heads=1, align="end"
    ... ).ravel().tolist()
    [2.0, 2.0]

    Source: labml-nn, ``transformers/xl/relative_mha.py`` and ``transformers/mha.py``; its Chinese
    and English pages (seeds 000 and 002).
    """
    check_relative(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    names = {"query.linear": query, "key.linear": key, "value.linear": value}
    q, k, v = (split_heads(linear(x, parameters, name), num_heads) for name, x in names.items())
    embeddings, bias, query_bias = (
        parameters[name] for name in ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    )
    attended = attend_learned_relative(
        q, k, v, embeddings, bias, query_bias, align, visible, keep, p
    )
    return linear(merge_heads(attended), parameters, "output")


def relative_multi_head_attention_grad(
    d_output: Float[ndarray, "B N F"],
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B M F"],
    value: Float[ndarray, "B M F"],
    parameters: Parameters,
    num_heads: int,
    align: Align,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    r"""
    The gradients of :func:`relative_multi_head_attention` by query, key, value and the parameters,
    the tables among them.

    With a the heads side by side, and :math:`\bar q, \bar k, \bar v` the gradients of
    :func:`attnverify.spec.relative.learned_relative_attention` from :math:`\bar a`,

    .. math:: \bar a = \bar o W_O, \qquad \overline{\text{query}} = \bar q W_Q, \qquad
              \bar W_O = \sum_{bi} \bar o_{bi} a_{bi}^\top, \qquad \bar b_O = \sum_{bi} \bar o_{bi}

    and likewise for key and value and their projections.

    1. The gradients of the tables are those of the attention; a row that no visible pair reads gets
       exactly 0.
    2. A key that no query of any head sees is absent, as in :func:`multi_head_attention_grad`.

    >>> x, one = np.array([[[1.0], [3.0]]]), np.eye(1)
    >>> weights = {
    ...     f"{name}.weight": one
    ...     for name in ("query.linear", "key.linear", "value.linear", "output")
    ... }
    >>> tables = {
    ...     "key_pos_embeddings": np.zeros((4, 1, 1)),
    ...     "key_pos_bias": np.zeros((4, 1)),
    ...     "query_pos_bias": np.zeros((1, 1)),
    ... }
    >>> d_query, d_key, d_value, d_parameters = relative_multi_head_attention_grad(
    ...     np.ones((1, 2, 1)), 0 * x, x, x, weights | tables, num_heads=1, align="end"
    ... )
    >>> d_query.ravel().tolist(), d_parameters["key_pos_bias"].ravel().tolist()
    ([1.0, 1.0], [0.0, -0.5, 0.0, 0.5])

    Source: labml-nn, ``transformers/xl/relative_mha.py``, by the chain rule.
    """
    at = check_relative(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    check(ARRAYS, D_X, d_output, **at)
    names = {"query.linear": query, "key.linear": key, "value.linear": value}
    q, k, v = (split_heads(linear(x, parameters, name), num_heads) for name, x in names.items())
    tables = {
        name: parameters[name] for name in ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    }
    terms: tuple[Any, ...] = q, k, v, *tables.values(), align, visible, keep, p
    attended = attend_learned_relative(*terms)
    d_attended, d_out = linear_grad(d_output, merge_heads(attended), parameters, "output")
    d_q, d_k, d_v, *d_tables = attend_learned_relative_grad(
        split_heads(d_attended, num_heads), *terms
    )
    seen = seen_pairs(visible, q, k)
    d_query, d_q_net = linear_grad(merge_heads(d_q), query, parameters, "query.linear")
    d_key, d_k_net = linear_grad(merge_heads(d_k), present(key, seen), parameters, "key.linear")
    d_value, d_v_net = linear_grad(
        merge_heads(d_v), present(value, seen), parameters, "value.linear"
    )
    d_parameters = d_q_net | d_k_net | d_v_net | d_out | dict(zip(tables, d_tables, strict=True))
    return d_query, d_key, d_value, in_order(d_parameters, parameters)


def seen_pairs(visible: Visible, q: ndarray, k: ndarray) -> Bool[ndarray, "B H N M"]:
    """Which pairs of queries and keys in heads see each other."""
    return np.broadcast_to(True if visible is None else visible, (*q.shape[:-1], k.shape[-2]))


def alibi_multi_head_attention(
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B N F"],
    value: Float[ndarray, "B N F"],
    parameters: Parameters,
    num_heads: int,
    visible: Bool[ndarray, "N N"],
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N F"]:
    r"""
    labml's multi-head attention with ALiBi biases.

    .. math:: o = a W_O^\top + b_O, \qquad
              a = \text{softmax}\Big(\frac{q k^\top}{\sqrt D} + \text{get\_alibi\_biases}(H,
              \text{visible})\Big) v

    with the softmax over the visible keys.

    1. ``parameters``: query.linear, key.linear, value.linear and output, each ``.weight`` [F F] and
       ``.bias`` [F] (absent = 0).
    2. ``visible`` [N M] is required, and N = M. The biases count its visible keys
       (:func:`attnverify.spec.alibi.get_alibi_biases`, clause 2).
    3. Every call computes the biases of its own mask.
    4. ``keep`` and ``p`` are the draw of a dropout on the weights
       (:func:`attnverify.spec.attention.dropout`); ``keep`` broadcasts to [B H N N].

    >>> x, one = np.array([[[1.0], [3.0]]]), np.eye(1)
    >>> weights = {
    ...     f"{name}.weight": one
    ...     for name in ("query.linear", "key.linear", "value.linear", "output")
    ... }
    >>> alibi_multi_head_attention(
    ...     0 * x, x, x, weights, num_heads=1, visible=np.eye(2, dtype=bool)
    ... ).ravel().tolist()
    [1.0, 3.0]

    Source: labml-nn, ``transformers/alibi`` and ``transformers/mha.py``; its page (seed 004).

    Errata: labml's ALiBi page (seed 004) keeps the biases of an earlier call whenever that call was
    at least as long, whatever its mask was. It describes a mask [N N B] and asserts that its last
    axis is 1.
    """
    check_alibi(ARRAYS, (query, key, value), parameters, num_heads, visible, keep, p)
    names = {"query.linear": query, "key.linear": key, "value.linear": value}
    q, k, v = (split_heads(linear(x, parameters, name), num_heads) for name, x in names.items())
    score = scaled_dot_product_score(q, k) + get_alibi_biases(num_heads, visible)
    return linear(merge_heads(attend(score, v, visible, keep, p)), parameters, "output")


def alibi_multi_head_attention_grad(
    d_output: Float[ndarray, "B N F"],
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B N F"],
    value: Float[ndarray, "B N F"],
    parameters: Parameters,
    num_heads: int,
    visible: Bool[ndarray, "N N"],
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    r"""
    The gradients of :func:`alibi_multi_head_attention` by query, key, value and the parameters.

    With a the heads side by side, and :math:`\bar q, \bar k, \bar v` the gradients of the attention
    between the projections, from :math:`\bar a`,

    .. math:: \bar a = \bar o W_O, \qquad \overline{\text{query}} = \bar q W_Q, \qquad
              \bar W_O = \sum_{bi} \bar o_{bi} a_{bi}^\top, \qquad \bar b_O = \sum_{bi} \bar o_{bi}

    and likewise for key and value and their projections.

    1. The biases are constants: slopes have no gradient.
    2. A key that no query sees is absent, as in :func:`multi_head_attention_grad`.

    >>> x, one = np.array([[[1.0], [3.0]]]), np.eye(1)
    >>> weights = {
    ...     f"{name}.weight": one
    ...     for name in ("query.linear", "key.linear", "value.linear", "output")
    ... }
    >>> d_query, d_key, d_value, d_parameters = alibi_multi_head_attention_grad(
    ...     np.ones((1, 2, 1)), 0 * x, x, x, weights, num_heads=1, visible=np.eye(2, dtype=bool)
    ... )
    >>> d_value.ravel().tolist(), d_parameters["output.weight"].item()
    ([1.0, 1.0], 4.0)

    Source: labml-nn, ``transformers/alibi``, by the chain rule.
    """
    at = check_alibi(ARRAYS, (query, key, value), parameters, num_heads, visible, keep, p)
    check(ARRAYS, D_X, d_output, **at)
    names = {"query.linear": query, "key.linear": key, "value.linear": value}
    q, k, v = (split_heads(linear(x, parameters, name), num_heads) for name, x in names.items())
    score = scaled_dot_product_score(q, k) + get_alibi_biases(num_heads, visible)
    seen = seen_pairs(visible, q, k)
    attended = merge_heads(attend(score, v, visible, keep, p))
    d_attended, d_out = linear_grad(d_output, attended, parameters, "output")
    d_score, d_v = attend_grad(split_heads(d_attended, num_heads), score, v, visible, keep, p)
    d_q, d_k = products_grad(d_score / np.sqrt(q.shape[-1]), seen, q, k)
    d_query, d_q_net = linear_grad(merge_heads(d_q), query, parameters, "query.linear")
    d_key, d_k_net = linear_grad(merge_heads(d_k), present(key, seen), parameters, "key.linear")
    d_value, d_v_net = linear_grad(
        merge_heads(d_v), present(value, seen), parameters, "value.linear"
    )
    d_parameters = d_q_net | d_k_net | d_v_net | d_out
    return d_query, d_key, d_value, in_order(d_parameters, parameters)


def transformer_xl_layer(
    x: Float[ndarray, "B N F"],
    position: Float[ndarray, "M F"],
    parameters: Parameters,
    num_heads: int,
    mem: Float[ndarray, "B S F"] | None = None,
    visible: Visible = None,
    eps: Eps = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N F"]:
    r"""
    The layer of Transformer-XL: relative attention to memory and segment, residual, layer norm; and
    the position-wise feed-forward, where its parameters are given.

    .. math:: y = \text{layer\_norm}\big(x + a W_O^\top\big), \qquad
              a = \text{transformer\_xl\_attention}(q, k, v, r W_R^\top, u, v), \qquad
              [q ; k ; v] = [\text{mem} ; x]\, W_{QKV}^\top

    1. ``parameters``: qkv_net [3F F] whose rows are query, then key, then value; r_net and o_net
       [F F]; layer_norm; u and v [H D]. All but u and v are ``.weight`` and ``.bias`` (absent = 0).
    2. Keys and values come from memory and segment, M = S + N; queries from the segment alone.
       ``position`` has a row for each key.
    3. The residual is added before the norm ("post-norm"). The norm divides by the root of
       variance + eps; Keras has eps 1e-3.
    4. The memory is a constant for the gradient: none flows into ``mem``.
    5. ``keep`` and ``p`` are the draw of a dropout on the weights
       (:func:`attnverify.spec.attention.dropout`); ``keep`` broadcasts to [B H N M].
    6. With ff_in [I F], ff_out [F I] and ff_norm among the ``parameters``, all of them or none, the
       layer goes on to :math:`z = \max(y W_1^\top + b_1, 0)` and
       :math:`\text{layer\_norm}'(y + z W_2^\top + b_2)`, with the same eps.

    >>> x, one = np.array([[[1.0, 3.0]]]), np.eye(2)
    >>> parameters = {
    ...     "qkv_net.weight": np.zeros((6, 2)),
    ...     "r_net.weight": one,
    ...     "o_net.weight": one,
    ...     "layer_norm.weight": np.ones(2),
    ...     "u": np.zeros((1, 2)),
    ...     "v": np.zeros((1, 2)),
    ... }
    >>> transformer_xl_layer(
    ...     x, np.zeros((1, 2)), parameters, num_heads=1, eps=0.0
    ... ).ravel().tolist()
    [-1.0, 1.0]

    Source: Dai et al. 2019, section 3.3; Vaswani et al. 2017, section 3.3 (seed 003).

    Errata of a tutorial for TensorFlow 2 (seed 003): the mask is added as ``mask * 1e-9`` and hides
    nothing (as in cyobero/datascience and eight more files); ``tf.sqrt`` does not support integers
    (TensorFlow's documentation); ``qvk_net`` is named query-value-key and split as query, key,
    value; the padding is described with the shape that :func:`attnverify.spec.shifts.rel_shift`
    corrects.
    """
    at = check_xl_layer(ARRAYS, x, position, parameters, num_heads, mem, eps)
    N, F = at["N"], at["F"]
    keys = x if mem is None else np.concatenate([mem, x], axis=1)
    q, k, v = (
        split_heads(part, num_heads)
        for part in np.split(linear(keys, parameters, "qkv_net"), 3, axis=-1)
    )
    r = linear(position, parameters, "r_net").reshape(-1, num_heads, F // num_heads).swapaxes(0, 1)
    attended = attend_transformer_xl(
        q[:, :, -N:], k, v, r, parameters["u"], parameters["v"], visible, keep, p
    )
    y = x + linear(merge_heads(attended), parameters, "o_net")
    normed = layer_norm(y, parameters["layer_norm.weight"], parameters.get("layer_norm.bias"), eps)
    return feed_forward(normed, parameters, eps) if "ff_in.weight" in parameters else normed


def transformer_xl_layer_grad(
    d_output: Float[ndarray, "B N F"],
    x: Float[ndarray, "B N F"],
    position: Float[ndarray, "M F"],
    parameters: Parameters,
    num_heads: int,
    mem: Float[ndarray, "B S F"] | None = None,
    visible: Visible = None,
    eps: Eps = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    r"""
    The gradients of :func:`transformer_xl_layer` by x, position and the parameters, and by the
    memory if there is one: zeros.

    With y what the norm is given, :math:`\bar y` from :math:`\bar o` by the norm, and
    :math:`\bar q, \bar k, \bar v, \bar r` the gradients of
    :func:`attnverify.spec.relative.transformer_xl_attention` from :math:`\bar y W_O`,

    .. math:: \bar x = \bar y + [\bar q ; \bar k ; \bar v]\, W_{QKV}, \qquad
              \overline{\text{position}} = \bar r W_R, \qquad
              \bar W_{QKV} = \sum_{bj} [\bar q ; \bar k ; \bar v]_{bj}\, [\text{mem} ; x]_{bj}^\top

    1. The residual hands :math:`\bar y` on to x beside what comes through the attention.
    2. The memory is a constant: its own gradient is 0, but the keys and values made of it have
       their part in that of qkv_net. There are no queries of it.
    3. A key that no query of any head sees is absent: it gives nothing to the weights of keys and
       values.
    4. Through the feed-forward, where there is one, :math:`\bar o` becomes what arrives at the norm
       first. The derivative of its ReLU is 0 where it is given 0.

    >>> x, one = np.array([[[1.0, 3.0]]]), np.eye(2)
    >>> parameters = {
    ...     "qkv_net.weight": np.zeros((6, 2)),
    ...     "r_net.weight": one,
    ...     "o_net.weight": one,
    ...     "layer_norm.weight": np.ones(2),
    ...     "u": np.zeros((1, 2)),
    ...     "v": np.zeros((1, 2)),
    ... }
    >>> d_x, d_position, d_parameters = transformer_xl_layer_grad(
    ...     np.ones((1, 1, 2)), x, np.zeros((1, 2)), parameters, num_heads=1, eps=0.0
    ... )
    >>> d_x.ravel().tolist(), d_parameters["layer_norm.weight"].tolist()
    ([0.0, 0.0], [-1.0, 1.0])

    Source: Dai et al. 2019, section 3.3, by the chain rule.
    """
    at = check_xl_layer(ARRAYS, x, position, parameters, num_heads, mem, eps)
    check(ARRAYS, D_X, d_output, **at)
    N, F, H = at["N"], at["F"], num_heads
    keys = x if mem is None else np.concatenate([mem, x], axis=1)
    q, k, v = (
        split_heads(part, H) for part in np.split(linear(keys, parameters, "qkv_net"), 3, axis=-1)
    )
    r = linear(position, parameters, "r_net").reshape(-1, H, F // H).swapaxes(0, 1)
    u_v = parameters["u"], parameters["v"]
    terms: tuple[Any, ...] = q[:, :, -N:], k, v, r, *u_v, visible, keep, p
    attended = merge_heads(attend_transformer_xl(*terms))
    y = x + linear(attended, parameters, "o_net")
    norm = parameters["layer_norm.weight"], parameters.get("layer_norm.bias"), eps
    d_normed, d_ff = d_output, dict[str, ndarray]()
    if "ff_in.weight" in parameters:
        d_normed, d_ff = feed_forward_grad(d_output, layer_norm(y, *norm), parameters, eps)
    d_y, d_norm = layer_norm_grad(d_normed, y, parameters, eps)
    d_attended, d_o_net = linear_grad(d_y, attended, parameters, "o_net")
    d_q, d_k, d_v, d_r, d_u, d_v_bias = attend_transformer_xl_grad(
        split_heads(d_attended, H), *terms
    )
    net = split_qkv_net(parameters)
    d_kv = np.concatenate([merge_heads(d_k), merge_heads(d_v)], axis=-1)
    present_keys = present(keys, causal_and(visible, q[:, :, -N:], k))
    d_x, d_q_net = linear_grad(merge_heads(d_q), x, net, "q")
    d_keys, d_kv_net = linear_grad(d_kv, present_keys, net, "kv")
    d_qkv_net = {
        f"qkv_net.{part}": np.concatenate([d_q_net[f"q.{part}"], d_kv_net[f"kv.{part}"]])
        for part in ("weight", "bias")
        if f"q.{part}" in d_q_net
    }
    d_rows = d_r.swapaxes(0, 1).reshape(-1, F)
    d_position, d_r_net = linear_grad(d_rows, position, parameters, "r_net")
    d_parameters = d_qkv_net | d_r_net | d_o_net | d_norm | {"u": d_u, "v": d_v_bias} | d_ff
    d_mem = () if mem is None else (np.zeros_like(mem),)
    return d_y + d_x + d_keys[:, -N:], d_position, in_order(d_parameters, parameters), *d_mem


def split_qkv_net(parameters: Parameters) -> dict[str, ndarray]:
    """The projection qkv_net as two: that of the queries, and that of keys and values."""
    F = parameters["qkv_net.weight"].shape[-1]
    parts = {"q": slice(F), "kv": slice(F, None)}
    return {
        f"{name}.{part}": parameters[f"qkv_net.{part}"][rows]
        for name, rows in parts.items()
        for part in ("weight", "bias")
        if parameters.get(f"qkv_net.{part}") is not None
    }


def transformer_xl(
    x: Float[ndarray, "B N F"],
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Mems,
    mem_len: MemoryLength,
    eps: Eps = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[ndarray, "B N F"], Mems]:
    r"""
    A stack of Transformer-XL layers over one segment, and the memory for the next.

    .. math:: h_0 = x, \qquad h_{l+1} = \text{transformer\_xl\_layer}_l(h_l, \text{mems}_l), \qquad
              \text{mems}' = \text{update\_mems}(h_0 \dots h_{L-1}, \text{mems})

    1. ``parameters`` has one mapping per layer. All layers share the sinusoidal positions of
       M = S + N.
    2. The memory of layer l holds the *inputs* of layer l. The last layer's output is in no memory.
    3. Segment by segment, with a memory that starts empty (S = 0) and is long enough for all that
       came before, equals one long segment. Zeros of
       :func:`attnverify.spec.memory.init_mems` are keys like any other and take their share of the
       weights.
    4. ``mems`` None is no memory, and gives no new one.
    5. ``keep`` broadcasts to [L B H N M]: each layer has a draw of its own.

    >>> one = np.eye(2)
    >>> parameters = {
    ...     "qkv_net.weight": np.zeros((6, 2)),
    ...     "r_net.weight": one,
    ...     "o_net.weight": one,
    ...     "layer_norm.weight": np.ones(2),
    ...     "u": np.zeros((1, 2)),
    ...     "v": np.zeros((1, 2)),
    ... }
    >>> x, mems = np.array([[[1.0, 3.0]]]), [np.array([[[5.0, 9.0]]])]
    >>> hidden, mems = transformer_xl(
    ...     x, [parameters], num_heads=1, mems=mems, mem_len=1, eps=0.0
    ... )
    >>> hidden.ravel().tolist(), mems[0].ravel().tolist()
    ([-1.0, 1.0], [1.0, 3.0])

    Source: Dai et al. 2019, section 3 (seed 003).
    """
    at = check_xl_stack(ARRAYS, x, parameters, mems)
    position = sinusoidal_positions(at["M"], at["F"])
    check_draw(ARRAYS, keep, p, (len(parameters), at["B"], num_heads, at["N"], at["M"]))
    hids = [x]
    for layer, weights in enumerate(parameters):
        mem = None if mems is None else mems[layer]
        kept = keep if keep is None or keep.ndim < 5 else keep[layer % len(keep)]
        hids.append(
            transformer_xl_layer(
                hids[-1], position, weights, num_heads, mem, eps=eps, keep=kept, p=p
            )
        )
    return hids[-1], update_mems(hids[:-1], mems, mem_len)


def transformer_xl_grad(
    d_output: Float[ndarray, "B N F"],
    d_new_mems: Mems,
    x: Float[ndarray, "B N F"],
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Mems,
    mem_len: MemoryLength,
    eps: Eps = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    r"""
    The gradients of :func:`transformer_xl` by x and by the parameters of each layer, and by the
    memory if there is one: zeros.

    .. math:: \bar h_L = \bar o, \qquad \bar h_l = \overline{\text{transformer\_xl\_layer}}_l(\bar
              h_{l+1}), \qquad \bar x = \bar h_0

    1. Layer by layer, from the last to the first, each by :func:`transformer_xl_layer_grad`.
    2. What arrives at the new memory goes nowhere
       (:func:`attnverify.spec.memory.update_mems_grad`), and none flows into the old one.

    >>> one = np.eye(2)
    >>> parameters = {
    ...     "qkv_net.weight": np.zeros((6, 2)),
    ...     "r_net.weight": one,
    ...     "o_net.weight": one,
    ...     "layer_norm.weight": np.ones(2),
    ...     "u": np.zeros((1, 2)),
    ...     "v": np.zeros((1, 2)),
    ... }
    >>> x, mems = np.array([[[1.0, 3.0]]]), [np.array([[[5.0, 9.0]]])]
    >>> d_x, d_parameters, d_mems = transformer_xl_grad(
    ...     np.array([[[1.0, 0.0]]]), mems, x, [parameters], 1, mems, mem_len=1, eps=1.0
    ... )
    >>> d_x.ravel().round(3).tolist(), d_mems[0].ravel().tolist()
    ([0.177, -0.177], [0.0, 0.0])

    Source: Dai et al. 2019, section 3, by the chain rule.
    """
    _, new_mems = transformer_xl(x, parameters, num_heads, mems, mem_len, eps, keep, p)
    at = check_xl_stack(ARRAYS, x, parameters, mems)
    check(ARRAYS, D_X, d_output, **at)
    check_memory_gradients(ARRAYS, d_new_mems, new_mems)
    position = sinusoidal_positions(at["M"], at["F"])
    hids, given = [x], []
    for layer, weights in enumerate(parameters):
        mem = None if mems is None else mems[layer]
        kept = keep if keep is None or keep.ndim < 5 else keep[layer % len(keep)]
        given.append((hids[-1], position, weights, num_heads, mem, None, eps, kept, p))
        hids.append(transformer_xl_layer(*given[-1]))
    d_hidden = d_output
    d_parameters: list[dict[str, ndarray]] = []
    for inputs in given[::-1]:
        d_hidden, _, d_weights, *_ = transformer_xl_layer_grad(d_hidden, *inputs)
        d_parameters.insert(0, d_weights)
    d_mems = () if mems is None else ([np.zeros_like(mem) for mem in mems],)
    return d_hidden, d_parameters, *d_mems
