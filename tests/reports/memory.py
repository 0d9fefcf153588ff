"""The memory of a recurrent transformer."""

import torch


def update_mems(hids, mems, mem_len):
    if mems is None:
        return None
    new = []
    for hid, mem in zip(hids, mems, strict=True):
        both = torch.cat([mem, hid], 1)
        end = both.shape[1]
        begin = max(0, end - mem_len)
        new.append(both[:, begin:end].detach().clone())
    return new
