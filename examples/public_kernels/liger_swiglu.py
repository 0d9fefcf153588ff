"""
src/liger_kernel/ops/swiglu.py of linkedin/Liger-Kernel (BSD-2-Clause), seen at ead96b6: the gate of
a feed-forward layer, forward and backward.

    git clone https://github.com/linkedin/Liger-Kernel $PUBLIC_KERNELS/Liger-Kernel
    attnverify run examples/public_kernels/liger_swiglu.py --profile quick \
        --spec examples/public_kernels/specifications.py:gated_silu

Adapted: its package is entered without ``liger_kernel/__init__.py`` and
``liger_kernel/ops/__init__.py``, which import every other operator.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch.distributed.tensor  # noqa: F401 - it takes for granted that somebody has

sys.path.append(str(Path(__file__).parent))
from checkouts import checkout

TARGET = "sm_90a"
DTYPES = ("float32", "float16", "bfloat16")

for name in ("liger_kernel", "liger_kernel.ops"):
    place = checkout("Liger-Kernel").joinpath("src", *name.split("."))
    sys.modules.setdefault(name, ModuleType(name)).__path__ = [str(place)]
swiglu = import_module("liger_kernel.ops.swiglu")


def gated_silu(a, b):
    return swiglu.LigerSiLUMulFunction.apply(a, b)
