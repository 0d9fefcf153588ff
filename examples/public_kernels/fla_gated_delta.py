"""
fla/ops/gated_delta_rule/chunk.py of fla-org/flash-linear-attention (MIT), seen at bc3b101: the
gated delta rule in tiles of 64 rows, forward and backward in some ten kernels.

    git clone https://github.com/fla-org/flash-linear-attention \
        $PUBLIC_KERNELS/flash-linear-attention && pip install einops
    attnverify run examples/public_kernels/fla_gated_delta.py --profile quick --dtype float32 \
        --spec examples/public_kernels/specifications.py:gated_delta_rule

Adapted: its package is entered without ``fla/__init__.py`` and ``fla/ops/__init__.py``, which
import models and every other operator. In float32 its products are those of TF32, Triton's
default, and declared so.
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
PRECISION = {"float32": {"preset": "fused", "operand": "tf32"}, "*": "fused"}

for name in ("fla", "fla.ops"):
    place = checkout("flash-linear-attention").joinpath(*name.split("."))
    sys.modules.setdefault(name, ModuleType(name)).__path__ = [str(place)]
sys.modules["fla"].__version__ = "as checked out"
torch.compiler.set_stance("force_eager")
chunk_gated_delta_rule = import_module("fla.ops.gated_delta_rule.chunk").chunk_gated_delta_rule


def gated_delta_rule(q, k, v, g, beta):
    if q.shape[-1] > 256:
        raise NotImplementedError("current kernel does not support head dimension larger than 256.")
    return chunk_gated_delta_rule(*(x.contiguous() for x in (q, k, v, g, beta)))[0]
