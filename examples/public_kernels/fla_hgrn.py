"""
fla/ops/hgrn/chunk.py of fla-org/flash-linear-attention (MIT), seen at bc3b101: a gated recurrence
in tiles of 128 rows, forward and backward.

    git clone https://github.com/fla-org/flash-linear-attention \
        $PUBLIC_KERNELS/flash-linear-attention
    attnverify run examples/public_kernels/fla_hgrn.py --profile quick --dtype float32 \
        --spec examples/public_kernels/specifications.py:gated_recurrence

Adapted: its package is entered without ``fla/__init__.py`` and ``fla/ops/__init__.py``, which
import models and every other operator; ``torch.compile`` of its autograd function is left out.
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

for name in ("fla", "fla.ops"):
    place = checkout("flash-linear-attention").joinpath(*name.split("."))
    sys.modules.setdefault(name, ModuleType(name)).__path__ = [str(place)]
sys.modules["fla"].__version__ = "as checked out"
torch.compiler.set_stance("force_eager")
chunk_hgrn = import_module("fla.ops.hgrn.chunk").chunk_hgrn


def gated_recurrence(x, g):
    return chunk_hgrn(x, g)[0]
