from types import SimpleNamespace

import torch  # noqa: F401
from transformers import XLNetModel


def sinusoidal_positions(M, F):
    model = SimpleNamespace(d_model=F, attn_type="uni", bi_data=False, clamp_len=-1)
    model.positional_embedding = XLNetModel.positional_embedding
    return XLNetModel.relative_positional_encoding(model, qlen=M, klen=M - 1)[:, 0]
