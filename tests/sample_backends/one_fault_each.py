"""
Wrong in one way each, and right in every other: what comes after the operation's name says what is
wrong.

Each guard of the judge has its twin here (tests/attnverify/judge/test_judge.py says which).
"""

import numpy as np

from attnverify import numpy_ref as right

ARRAYS = "numpy"
PRECISION = "wide"


def softmax_right(score, mask=None):
    return right.softmax(score, mask)


def alibi_attention_right(query, key, value, visible=None):
    return right.alibi_attention(query, key, value, visible)


def scaled_dot_product_attention_right(query, key, value, mask=None, keep=None, p=0.0):
    return right.scaled_dot_product_attention(query, key, value, mask, keep, p)


def update_mems_right(hids, mems, mem_len):
    return right.update_mems(hids, mems, mem_len)


def softmax_zeros(score, mask=None):
    return np.zeros_like(right.softmax(score, mask))


def softmax_one_element(score, mask=None):
    weights = right.softmax(score, mask)
    weights[..., -1, -1] *= 1.001
    return weights


def softmax_nan(score, mask=None):
    return np.where(right.softmax(score, mask) == 0, np.float32(np.nan), right.softmax(score, mask))


def softmax_infinity(score, mask=None):
    return right.softmax(score, mask) / np.float32(0)


def softmax_two_faults(score, mask=None):
    weights = right.softmax(score, mask)
    if mask is not None:
        raise RuntimeError("masks")
    return weights / 2


def softmax_averages_empty_rows(score, mask=None):
    weights = right.softmax(score, mask)
    return np.where(
        weights.any(axis=-1, keepdims=True), weights, weights.dtype.type(1 / weights.shape[-1])
    )


def softmax_shape(score, mask=None):
    return right.softmax(score, mask)[None]


def softmax_dtype(score, mask=None):
    return right.softmax(score, mask).astype(np.float64)


def softmax_float(score, mask=None):
    return float(right.softmax(score, mask).sum())


def softmax_none(score, mask=None):
    right.softmax(score, mask)


def softmax_list(score, mask=None):
    return [right.softmax(score, mask)]


def softmax_runtime_error(score, mask=None):
    right.softmax(score, mask)
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def softmax_type_error(score, mask=None):
    right.softmax(score, mask)
    raise TypeError("unsupported operand")


def softmax_no_float_masks(score, mask=None):
    if mask is not None and mask.dtype.kind == "f":
        raise NotImplementedError("float masks")
    return right.softmax(score, mask)


def softmax_never(score, mask=None):
    raise NotImplementedError("needs a device of the next generation")


def softmax_in_place(score, mask=None):
    weights = right.softmax(score, mask)
    score[...] = score - score.max(axis=-1, keepdims=True)
    return weights


def softmax_uninitialised(score, mask=None):
    out = np.empty_like(score)
    weights = right.softmax(score.copy(), mask)
    np.copyto(
        out, weights, where=weights.any(axis=-1, keepdims=True)
    )  # the rows that see no key are never written
    return out


def softmax_refuses_with_type_error(score, mask=None):
    try:
        return right.softmax(score, mask)
    except ValueError as error:
        raise TypeError(str(error)) from None


def softmax_refuses_with_runtime_error(score, mask=None):
    try:
        return right.softmax(score, mask)
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def softmax_accepts_integers(score, mask=None):
    if mask is not None and mask.dtype.kind == "i":
        mask = mask.astype(bool)
    return right.softmax(score, mask)


def rel_shift_alias(x):
    return x if x.shape[-2] == 1 else right.rel_shift(x)


def shift_right_unsigned_zero(x):
    return right.shift_right(x) + 0.0  # -0.0 + 0.0 is 0.0


def shift_right_forgets_the_wrap(x):
    return np.tril(right.shift_right(x))


def alibi_attention_off_by_one(query, key, value, visible=None):
    right.alibi_attention(query, key, value, visible)
    (N, M) = query.shape[2], key.shape[2]
    frontier = np.arange(M) < np.arange(N)[:, None] + M - N
    return right.alibi_attention(
        query, key, value, frontier if visible is None else visible & frontier
    )


def alibi_attention_leaky(query, key, value, visible=None):
    right.alibi_attention(query, key, value, visible)
    H, N, M = query.shape[1], query.shape[2], key.shape[2]
    distance = np.arange(M) - np.arange(M - N, M)[:, None]
    seen = (distance <= 0) if visible is None else (distance <= 0) & visible
    score = (
        query.astype(float) @ key.astype(float).mT / query.shape[-1] ** 0.5
        + right.get_slopes(H)[:, None, None] * distance
    )
    weights = right.softmax(np.where(seen, score, 0.0), np.broadcast_to(seen, score.shape))
    return (weights @ value.astype(float)).astype(query.dtype)  # 0 * NaN


def relative_multi_head_attention_leaky(
    query, key, value, parameters, num_heads, align, visible=None
):
    output = right.relative_multi_head_attention(
        query, key, value, parameters, num_heads, align, visible
    )
    return output + 0 * np.abs(value).max(axis=1, keepdims=True)


def multi_head_attention_leaky(
    query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None
):
    output, weights = right.multi_head_attention(
        query, key, value, parameters, num_heads, attn_mask, key_padding_mask
    )
    return output + 0 * np.abs(value).max(axis=1, keepdims=True), weights


def alibi_attention_short(query, key, value, visible=None):
    output = right.alibi_attention(query, key, value, visible)
    return output if key.shape[2] <= 2000 else np.zeros_like(output)


def alibi_attention_transposed(query, key, value, visible=None):
    return right.alibi_attention(query, key, value, visible).swapaxes(1, 2)


def alibi_attention_mixes_the_batch(query, key, value, visible=None):
    right.alibi_attention(query, key, value, visible)
    return right.alibi_attention(query, key[:1].repeat(len(key), axis=0), value, visible)


def alibi_attention_grad_missing_term(d_output, query, key, value, visible=None):
    d_query, d_key, d_value = right.alibi_attention_grad(d_output, query, key, value, visible)
    return d_query, d_key * 0, d_value


def alibi_attention_grad_nan_in_hidden_slots(d_output, query, key, value, visible=None):
    d_query, d_key, d_value = right.alibi_attention_grad(d_output, query, key, value, visible)
    d_key[~d_value.any(axis=-1)] = np.nan
    return d_query, d_key, d_value


def alibi_attention_grad_two_of_three(d_output, query, key, value, visible=None):
    return right.alibi_attention_grad(d_output, query, key, value, visible)[:2]


def scaled_dot_product_attention_ignores_keep(query, key, value, mask=None, keep=None, p=0.0):
    right.scaled_dot_product_attention(query, key, value, mask, keep, p)
    return right.scaled_dot_product_attention(query, key, value, mask)


def scaled_dot_product_attention_ignores_p(query, key, value, mask=None, keep=None, p=0.0):
    right.scaled_dot_product_attention(query, key, value, mask, keep, p)
    return right.scaled_dot_product_attention(query, key, value, mask, keep, 0.5 if p else 0.0)


def scaled_dot_product_attention_drops_the_mask(query, key, value, mask=None, keep=None, p=0.0):
    right.scaled_dot_product_attention(query, key, value, mask, keep, p)
    return right.scaled_dot_product_attention(
        query, key, value, None if keep is not None else mask, keep, p
    )


MASKS = {}


def scaled_dot_product_attention_remembers(query, key, value, mask=None, keep=None, p=0.0):
    right.scaled_dot_product_attention(query, key, value, mask, keep, p)
    if mask is not None and mask.dtype == bool:
        mask = MASKS.setdefault(
            (query.shape, mask.shape), mask
        )  # as a cache keyed by the length alone
    return right.scaled_dot_product_attention(query, key, value, mask, keep, p)


def update_mems_alias(hids, mems, mem_len):
    new = right.update_mems(hids, mems, mem_len)
    return hids if new is not None and mem_len == hids[0].shape[1] else new
