"""
Plain attention that is right when it is judged alone, and cheats when it is timed. Not to be
believed: tests/attnverify/bench/test_bench.py.
"""

import threading
import time

import torch

PRECISION = "wide"

CACHE = {}
CALLS = {"early": 0, "elsewhere": 0}


def attend(query, key, value):
    score = query.double() @ key.double().mT / query.shape[-1] ** 0.5
    return (score.softmax(-1) @ value.double()).to(query.dtype)


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    return attend(query, key, value)


def scaled_dot_product_attention_caches(query, key, value, mask=None, keep=None, p=0.0):
    """It answers a second call of the same shape with what it answered first."""
    return CACHE.setdefault(query.shape, attend(query, key, value)).clone()


def scaled_dot_product_attention_early(query, key, value, mask=None, keep=None, p=0.0):
    """From its third call on it returns when half of the rows are done."""
    CALLS["early"] += 1
    if CALLS["early"] < 3:
        return attend(query, key, value)
    N = query.shape[-2]
    output = torch.empty_like(value.expand(*query.shape[:-1], value.shape[-1]))
    output[..., : N // 2, :] = attend(query[..., : N // 2, :], key, value)
    return output


def scaled_dot_product_attention_elsewhere(query, key, value, mask=None, keep=None, p=0.0):
    """From its third call on another thread does the work, after the call has returned."""
    CALLS["elsewhere"] += 1
    if CALLS["elsewhere"] < 3:
        return attend(query, key, value)
    output = torch.zeros_like(query)

    def later():
        time.sleep(0.05)
        output.copy_(attend(query, key, value))

    threading.Thread(target=later).start()
    return output


def scaled_dot_product_attention_wrong(query, key, value, mask=None, keep=None, p=0.0):
    return attend(query * 1.01, key, value)


def scaled_dot_product_attention_unable(query, key, value, mask=None, keep=None, p=0.0):
    raise NotImplementedError("on Sundays")


def scaled_dot_product_attention_large(query, key, value, mask=None, keep=None, p=0.0):
    """As the plain one, with two megabytes that it does not need."""
    waste = torch.ones(2**18, dtype=torch.float64)
    return attend(query, key, value) + 0 * waste[0].to(query.dtype)


def scaled_dot_product_attention_greedy(query, key, value, mask=None, keep=None, p=0.0):
    raise torch.OutOfMemoryError("Tried to allocate 34.00 GiB")


ROOM = [True]


def scaled_dot_product_attention_greedier(query, key, value, mask=None, keep=None, p=0.0):
    """Room for one call, when it is judged, and for none afterwards."""
    if not ROOM:
        raise torch.OutOfMemoryError("Tried to allocate 34.00 GiB")
    ROOM.clear()
    return attend(query, key, value)
