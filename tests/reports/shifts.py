"""The shift of Transformer-XL by padding and reshaping."""

import torch


def rel_shift(x):
    n, m = x.shape[-2:]
    padded = torch.cat([x.new_zeros(*x.shape[:-1], 1), x], -1)
    padded = padded.reshape(*x.shape[:-2], m + 1, n)
    return padded[..., 1:, :].reshape(x.shape)
