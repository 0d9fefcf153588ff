"""
fla/ops/nsa/parallel.py of fla-org/flash-linear-attention (MIT), seen at bc3b101: attention to the
blocks that a row has chosen, of Native Sparse Attention, causal, forward and backward in Triton.

    git clone https://github.com/fla-org/flash-linear-attention \
        $PUBLIC_KERNELS/flash-linear-attention && pip install einops
    attnverify run examples/public_kernels/fla_nsa.py --profile quick

Adapted: its package is entered without ``fla/__init__.py`` and ``fla/ops/__init__.py``, which
import models and every other operator; ``torch.compile`` of its autograd function is left out.
Heads of zeros are put beside those that share a head of keys until there are sixteen. A row that
sees no key, NaN there, chooses its own block here, and its output is 0. The backward pass compiles
for 1, 2, 4, 8, ... choices: rows choose nothing besides, up to that. What its kernels do not take
is not supported: no causality, another number of keys than of rows, blocks of less than 16 keys.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).parent))
from checkouts import checkout

TARGET = "sm_90a"
DTYPES = ("float16", "bfloat16")
FEATURES = {"lse": False, "N != M": False, "width": (16, 32, 64, 128)}

for name in ("fla", "fla.ops"):
    place = checkout("flash-linear-attention").joinpath(*name.split("."))
    sys.modules.setdefault(name, ModuleType(name)).__path__ = [str(place)]
sys.modules["fla"].__version__ = "as checked out"
torch.compiler.set_stance("force_eager")
Chosen = import_module("fla.ops.nsa.parallel").ParallelNSAFunction


def selected_attention(query, key, value, selection, block, causal=False, scale=None):
    if not causal or block < 16:
        raise NotImplementedError("causal alone, in blocks of 16 or more")
    G, r = key.shape[1], query.shape[1] // key.shape[1]
    own = torch.arange(query.shape[2])[:, None] // block
    none = ((selection < 0) | (selection > own)).all(-1, keepdim=True)
    J = selection.shape[-1]
    chosen = F.pad(
        torch.where(none, own, selection), (0, (1 << (J - 1).bit_length()) - J), value=-1
    )
    chosen = chosen.transpose(1, 2).contiguous()
    rest = max(16, 1 << (r - 1).bit_length()) - r
    q = F.pad(query.unflatten(1, (G, r)), (0, 0, 0, 0, 0, rest)).flatten(1, 2)
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, key, value))
    scale = scale or q.shape[-1] ** -0.5
    out = Chosen.apply(q, k, v, chosen, chosen.shape[-1], block, scale, None)
    out = out.unflatten(2, (G, -1))[:, :, :, :r].flatten(2, 3).transpose(1, 2)
    return out * ~none.repeat_interleave(r, 1)
