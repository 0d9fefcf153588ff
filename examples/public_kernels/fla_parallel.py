"""
fla/ops/attn/parallel.py of fla-org/flash-linear-attention (MIT), seen at bc3b101: causal softmax
attention, forward and backward in Triton.

    git clone https://github.com/fla-org/flash-linear-attention \
        $PUBLIC_KERNELS/flash-linear-attention
    attnverify run examples/public_kernels/fla_parallel.py --profile quick

Adapted: its package is entered without ``fla/__init__.py`` and ``fla/ops/__init__.py``, which
import models and every other operator; ``torch.compile`` of its autograd function is left out.
In float32 its products are those of TF32, Triton's default, and declared so.
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
LAYOUT = "BNHD"
FEATURES = {"N != M": False, "dropout": False, "mask": "causal"}
ARGUMENTS = {"causal": "causal mask"}
PRECISION = {"float32": {"preset": "fused", "operand": "tf32"}, "*": "fused"}

for name in ("fla", "fla.ops", "fla.ops.attn"):
    package = ModuleType(name)
    package.__path__ = [str(checkout("flash-linear-attention").joinpath(*name.split(".")))]
    sys.modules.setdefault(name, package)
sys.modules["fla"].__version__ = "as checked out"
torch.compiler.set_stance("force_eager")
parallel_attn = import_module("fla.ops.attn.parallel").parallel_attn


def scaled_dot_product_attention(query, key, value, causal=False):
    if not causal:
        raise NotImplementedError("causal alone")
    if query.shape[-1] > 256:
        raise NotImplementedError("The key dimension can not be larger than 256")
    return parallel_attn(query, key, value)
