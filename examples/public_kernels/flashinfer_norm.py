"""
flashinfer/triton/norm.py of flashinfer-ai/flashinfer (Apache-2.0), seen at fb28d72: the RMS norm of
rows.

    git clone https://github.com/flashinfer-ai/flashinfer $PUBLIC_KERNELS/flashinfer
    attnverify run examples/public_kernels/flashinfer_norm.py --profile quick \
        --spec examples/public_kernels/specifications.py:rms_norm

Adapted: its package is entered without ``flashinfer/__init__.py``; rows are made contiguous, which
it takes for granted.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import checkout

TARGET = "sm_90a"
DTYPES = ("float32", "float16", "bfloat16")
FEATURES = {"gradient": False}

for name in ("flashinfer", "flashinfer.triton"):
    place = checkout("flashinfer").joinpath(*name.split("."))
    sys.modules.setdefault(name, ModuleType(name)).__path__ = [str(place)]
norm = import_module("flashinfer.triton.norm")


def rms_norm(x, weight, eps=1e-6):
    x = x.contiguous()
    out = torch.empty_like(x)
    norm.rms_norm(x, weight, out, eps)
    return out
