"""A torch file whose output is right, and whose autograd stops at the key."""

from attnverify.torch_impl import attention as right

ARRAYS = "torch"
PRECISION = "eager"


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    return right.scaled_dot_product_attention(query, key.detach(), value, mask, keep, p)
