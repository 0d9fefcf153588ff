import numpy as np
from onnx.reference.ops.op_rotary_embedding import rotary_embedding as turned


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    R = (rotary_dim or x.shape[-1]) // 2
    f = base ** (-np.arange(R) / R) if frequencies is None else frequencies
    angle = positions[..., None] * f
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    return turned(x, cos, sin, None, pairing == "interleaved", 2 * R)
