import numpy as np
from onnx.reference.ops.op_attention import _compute_attention

PRECISION = {"float32": {"prescale": "float32"}}
FEATURES = {"lse": False}


def grouped_attention(query, key, value, mask=None, soft_cap=None, scale=None):
    if mask is not None:  # a shorter one is padded with hidden keys
        mask = np.broadcast_to(mask, (*mask.shape[:-1], key.shape[2]))
    return _compute_attention(
        query, key, value, attn_mask=mask, scale=scale, softcap=soft_cap or 0.0
    )[0]
