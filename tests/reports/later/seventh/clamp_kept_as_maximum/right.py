"""Online softmax over tiles of keys with a clamp for empty rows (as oasr #101 had it)."""

import torch

FEATURES = {"dropout": False}
TILE = 4


class Softmax:
    def __init__(self, rows):
        self.row_max = torch.full_like(rows, -torch.inf)
        self.row_sum = torch.zeros_like(rows)

    def update(self, s, acc):
        row_max_prev = self.row_max
        row_max_cur = torch.maximum(row_max_prev, s.amax(-1, keepdim=True).detach())
        # empty-row clamp: exp(-inf - -inf) is NaN, exp(-inf - 0) is 0
        clamped = torch.where(row_max_cur == -torch.inf, 0.0, row_max_cur)
        p = (s - clamped).exp()
        rescale = (row_max_prev - clamped).exp()
        self.row_sum = self.row_sum * rescale + p.sum(-1, keepdim=True)
        self.row_max = row_max_cur
        return p, acc * rescale

    def finalize(self, acc):
        return acc / torch.where(self.row_sum == 0, 1.0, self.row_sum)


def scaled_dot_product_attention(query, key, value, mask=None):
    softmax = Softmax(query[..., :1].detach())
    acc = query.new_zeros(*query.shape[:3], value.shape[-1])
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    for start in range(0, key.shape[2], TILE):
        tile = slice(start, start + TILE)
        s = query @ key[:, :, tile].mT * query.shape[-1] ** -0.5
        if mask is not None and mask.dtype == torch.bool:
            s = s.masked_fill(~mask[..., tile], -torch.inf)
        elif mask is not None:
            s = s + mask[..., tile]
        p, acc = softmax.update(s, acc)
        acc = acc + p @ value[:, :, tile]
    return softmax.finalize(acc)
