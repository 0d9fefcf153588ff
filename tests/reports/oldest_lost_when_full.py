"""The memory of a recurrent transformer as a rolled buffer (kind of transformers #37574)."""

import torch


def update_mems(hids, mems, mem_len):
    return None if mems is None else [roll(m, h, mem_len) for m, h in zip(mems, hids, strict=True)]


def roll(mem, hid, mem_len):
    total = mem.shape[1] + hid.shape[1]
    if total <= mem_len:
        return torch.cat([mem, hid], 1).detach().clone()
    new = hid.new_zeros(hid.shape[0], mem_len, hid.shape[2])
    kept = hid[:, max(0, hid.shape[1] - mem_len) :]
    new[:, mem_len - kept.shape[1] :] = kept
    room = mem_len - kept.shape[1]
    if room > 0:
        new[:, :room] = mem[:, mem.shape[1] - room :]
    return new.detach()
