"""What looks like a fault and is none."""

import torch

from attnverify.torch_impl import update_mems as right

ARRAYS = "torch"
PRECISION = "eager"


def update_mems(hids, mems, mem_len):
    """The layers' memories are views of one block, which have no element in common."""
    memories = right(hids, mems, mem_len)
    return memories and list(torch.stack(memories, dim=-1).unbind(-1))
