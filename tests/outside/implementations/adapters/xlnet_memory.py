from types import SimpleNamespace

import torch  # noqa: F401
from transformers import XLNetModel


def update_mems(hids, mems, mem_len):
    model = SimpleNamespace(mem_len=mem_len, reuse_len=None)
    olds = [None] * len(hids) if mems is None else [mem.transpose(0, 1) for mem in mems]
    pairs = zip((hid.transpose(0, 1) for hid in hids), olds, strict=True)
    return [XLNetModel.cache_mem(model, hid, old).transpose(0, 1) for hid, old in pairs]
