import torch  # noqa: F401
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor


def get_slopes(n_heads):
    return -build_mpt_alibi_tensor(n_heads, 2)[:, 0, 0]
