"""A memory in PyTorch, in a buffer that grows in steps (as ChunkedKVCache of mlx-lm #1673)."""

import torch

STEP = 4


class Buffer:
    """Positions at the front, room behind them."""

    def __init__(self, first):
        self.data, self.filled = first.new_zeros(first.shape[0], 0, first.shape[2]), 0

    def append(self, x):
        need = self.filled + x.shape[1]
        room = -(-need // STEP) * STEP
        data = torch.zeros(x.shape[0], room, x.shape[2], dtype=x.dtype)
        data[:, : self.filled] = self.data[:, : self.filled]
        data[:, self.filled : need] = x
        self.data, self.filled = data, need

    def newest(self, count):
        length = self.data.shape[1]
        start = max(0, length - count)
        return self.data[:, start : start + min(count, self.filled)].clone()


def update_mems(hids, mems, mem_len):
    if mems is None:
        return None
    kept = []
    for hid, mem in zip(hids, mems, strict=True):
        buffer = Buffer(hid)
        buffer.append(mem.detach())
        buffer.append(hid.detach())
        kept.append(buffer.newest(mem_len))
    return kept
