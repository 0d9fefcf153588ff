"""The memory of a recurrent transformer (kind of huggingface/transformers #43203)."""

import torch


def update_mems(hids, mems, mem_len):
    if mems is None:
        return None
    new = []
    for hid, mem in zip(hids, mems, strict=True):
        both = torch.cat([mem, hid], 1)
        kept = both[:, max(0, both.shape[1] - mem_len) :]
        new.append(kept.detach().clone())
    return new
