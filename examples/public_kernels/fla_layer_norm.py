"""
fla/modules/layernorm.py of fla-org/flash-linear-attention (MIT), seen at bc3b101: a residual added
and normalised, forward and backward; blocks of its backward pass write rows that overlap.

    git clone https://github.com/fla-org/flash-linear-attention \
        $PUBLIC_KERNELS/flash-linear-attention
    attnverify run examples/public_kernels/fla_layer_norm.py --profile quick --dtype float32 \
        --spec examples/public_kernels/specifications.py:add_layer_norm

Adapted: its package is entered without ``fla/__init__.py`` and ``fla/modules/__init__.py``, which
import models and every other layer; ``torch.compile`` of its autograd function is left out.
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

for name in ("fla", "fla.ops", "fla.modules"):
    place = checkout("flash-linear-attention").joinpath(*name.split("."))
    sys.modules.setdefault(name, ModuleType(name)).__path__ = [str(place)]
sys.modules["fla"].__version__ = "as checked out"
torch.compiler.set_stance("force_eager")
layer_norm = import_module("fla.modules.layernorm").layer_norm


def add_layer_norm(x, residual, weight, bias, eps=1e-5):
    return layer_norm(x, weight, bias, residual, eps, prenorm=True)
