"""
flashinfer/triton/cascade.py of flashinfer-ai/flashinfer (Apache-2.0), seen at fb28d72: attentions
over disjoint keys merged into one, any number of them or two.

    git clone https://github.com/flashinfer-ai/flashinfer $PUBLIC_KERNELS/flashinfer
    attnverify run examples/public_kernels/flashinfer_merge.py --profile quick

Adapted: its package is entered without ``flashinfer/__init__.py``, and the one question about the
GPU is answered. Its lse is a logarithm to base 2.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

sys.path.append(str(Path(__file__).parent))
from checkouts import checkout

TARGET = "sm_90a"
DTYPES = ("float32", "float16")
LSE_BASE = 2
FEATURES = {"gradient": False}

for name in ("flashinfer", "flashinfer.triton", "flashinfer.utils"):
    place = checkout("flashinfer").joinpath(*name.split("."))
    sys.modules.setdefault(name, ModuleType(name)).__path__ = [str(place)]
sys.modules["flashinfer.utils"].get_compute_capability = lambda _: (9, 0)
sys.modules["flashinfer.utils"].GPUArchitectureError = RuntimeError
cascade = import_module("flashinfer.triton.cascade")


def merge_attention_states(outputs, lses):
    C, B, H, N, E = outputs.shape
    v = outputs.permute(1, 3, 0, 2, 4).reshape(B * N, C, H, E).contiguous()
    s = lses.permute(1, 3, 0, 2).reshape(B * N, C, H).contiguous()
    return in_order(*cascade.merge_states(v, s), B)


def merge_attention_state(outputs, lses):
    C, B, H, N, E = outputs.shape
    if C != 2:
        raise NotImplementedError("two parts")
    v = outputs.permute(0, 1, 3, 2, 4).reshape(2, B * N, H, E).contiguous()
    s = lses.permute(0, 1, 3, 2).reshape(2, B * N, H).contiguous()
    return in_order(*cascade.merge_state(v[0], s[0], v[1], s[1]), B)


def in_order(v, s, batch):
    return v.unflatten(0, (batch, -1)).transpose(1, 2), s.unflatten(0, (batch, -1)).transpose(1, 2)
