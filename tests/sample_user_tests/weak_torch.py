"""A test as many projects have it: one square case without a mask, a loose tolerance."""

import torch


def check_scaled_dot_product_attention(attention):
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 8, 4) for _ in range(3))
    expected = (query @ key.mT / 2).softmax(-1) @ value
    assert torch.allclose(attention(query, key, value), expected, atol=1e-2)
