"""
A test with teeth: N other than M, masks, empty rows, NaN in a hidden slot, a given draw, gradients,
and sizes of real models: thousands of keys or queries, wide heads, many pairs of batch and head.
"""

import torch

torch.manual_seed(0)


def expected(query, key, value, mask=None, keep=None, p=0.0):
    score = query @ key.mT / query.shape[-1] ** 0.5
    visible = (
        torch.ones_like(score, dtype=torch.bool)
        if mask is None
        else (mask if mask.dtype == torch.bool else mask > -torch.inf)
    )
    score = score if mask is None or mask.dtype == torch.bool else score + mask
    visible = visible.expand(score.shape)
    weights = score.masked_fill(~visible, -1e30).softmax(-1).masked_fill(~visible, 0)
    weights = weights if keep is None else (weights * keep) / (1 - p)
    return weights @ value.masked_fill(~visible.any(-2).unsqueeze(-1), 0)


def close(actual, wanted):
    assert actual.shape == wanted.shape and actual.dtype == wanted.dtype
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-10)


def check_scaled_dot_product_attention(attention):
    for N, M, D, E in ((5, 7, 4, 6), (1, 65, 3, 2), (70, 3, 96, 5), (6, 6, 4, 4)):
        query, key, value = (
            torch.randn(2, 3, *shape, dtype=torch.double) for shape in ((N, D), (M, D), (M, E))
        )
        masks = [
            None,
            torch.rand(N, M) < 0.7,
            torch.rand(2, 3, N, M) < 0.3,
            torch.randn(2, 1, N, M, dtype=torch.double),
        ]
        for mask in masks:
            for p in (0.0, 0.25):
                keep = torch.rand(2, 3, N, M) < 0.75 if p else None
                agree(attention, query, key, value, mask, keep, p)
    for B, H, N, M, D in (
        (1, 2, 2, 4300, 4),
        (1, 1, 1600, 3, 4),
        (1, 2, 3, 5, 200),
        (33, 32, 1, 2, 2),
    ):
        query, key, value = (torch.randn(B, H, size, D, dtype=torch.double) for size in (N, M, M))
        agree(attention, query, key, value, None, None, 0.0)


def agree(attention, query, key, value, mask, keep, p):
    given = [query, key, value] + ([mask] if mask is not None and mask.is_floating_point() else [])
    results = []
    for function in (attention, expected):
        leaves = [x.clone().requires_grad_() for x in given]
        output = function(*leaves[:3], leaves[3] if len(leaves) > 3 else mask, keep, p)
        results.append(
            (
                output,
                *torch.autograd.grad(
                    output,
                    leaves,
                    torch.arange(output.numel()).reshape(output.shape).double().sin(),
                ),
            )
        )
    for actual, wanted in zip(*results, strict=True):
        close(actual, wanted)
