from onnx.reference.ops.op_attention import _compute_attention

PRECISION = {"float32": {"prescale": "float32"}}
FEATURES = {"lse": False}


def grouped_attention(query, key, value, mask=None, soft_cap=None, scale=None):
    return _compute_attention(
        query, key, value, attn_mask=mask, scale=scale, softcap=soft_cap or 0.0
    )[0]
