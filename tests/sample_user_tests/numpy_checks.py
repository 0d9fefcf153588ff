"""Checks in NumPy: a right one, one that takes what is right for wrong, and one of a gradient."""

import numpy as np


def check_shift_right(shift_right):
    x = np.arange(1.0, 10.0).reshape(3, 3)
    assert shift_right(x).tolist() == [[1, 2, 3], [0, 4, 5], [6, 0, 7]]


def check_get_slopes(get_slopes):
    assert get_slopes(3).tolist() == [2.0**-3, 2.0**-6, 2.0**-9], "a plain series"


def check_alibi_attention_grad(gradient):
    rng = np.random.default_rng(0)
    d_output, query, key, value = (rng.standard_normal((1, 1, 2, 3)) for _ in range(4))
    d_query, d_key, d_value = gradient(d_output, query, key, value)
    assert d_value[0, 0, 1].any() and not d_query[0, 0, 0].any()
