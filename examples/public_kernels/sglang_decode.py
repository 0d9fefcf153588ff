"""
decode_attention.py of sgl-project/sglang (Apache-2.0), seen in 0.5.23: decoding over slots of a
pool, each sequence in two parts that are merged, with groups, a cap and sinks.

    git clone https://github.com/sgl-project/sglang $PUBLIC_KERNELS/sglang
    attnverify run examples/public_kernels/sglang_decode.py --profile quick --dtype float16

or, with nothing but the wheel: ``pip install --no-deps --target $PUBLIC_KERNELS/sglang/python
sglang``. Adapted: its package is entered without ``__init__``, and what it asks of the server and
the machine is answered; every row is given as a sequence of its own, and none without a key (0/0).
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import checkout

for name in ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention"):
    package = ModuleType(name)
    package.__path__ = [str(checkout("sglang").joinpath("python", *name.split(".")))]
    sys.modules.setdefault(name, package)
asked = ("is_hip", "is_gfx95_supported", "is_gfx1250_supported", "get_device_core_count")
server = SimpleNamespace(**dict.fromkeys(asked, lambda *_: 0), envs=None)
for name in ("sglang.srt", "sglang.srt.environ", "sglang.srt.utils"):
    sys.modules.setdefault(name, ModuleType(name)).__dict__.update(vars(server))
MODULE = "sglang.kernels.ops.attention.decode_attention"
decode_attention_fwd = import_module(MODULE).decode_attention_fwd

TARGET = "sm_90a"
DTYPES = ("float16",)
FEATURES = {"lse": False, "gradient": False, "width": (16, 32, 64, 128)}


def paged_attention(
    q, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, causal=False, sm_scale=None,
    logit_cap=0.0, sinks=None,
):  # fmt: skip
    rows, keys = qo_indptr.tolist(), kv_indptr.tolist()
    own = [
        (t, keys[b], keys[b + 1] - (rows[b + 1] - 1 - t) * causal)
        for b in range(len(keys) - 1)
        for t in range(rows[b], rows[b + 1])
    ]
    at = [t for t, first, end in own if end > first]  # without a key a row is 0 / 0 there
    own = [each for each in own if each[0] in at]
    out = torch.zeros(*q.shape[:2], v_buffer.shape[2], dtype=q.dtype)
    if at:
        starts = torch.tensor([0, *(end - first for _, first, end in own)]).cumsum(0).int()
        slots = torch.cat([kv_indices[first:end] for _, first, end in own]).int()
        found, splits = out[at], torch.full((len(at),), 2, dtype=torch.int32)
        parts, lses = (
            torch.zeros(*found.shape[:2], 2, out.shape[2]),
            torch.zeros(*found.shape[:2], 2),
        )
        scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
        decode_attention_fwd(
            q[at].contiguous(), k_buffer.contiguous(), v_buffer.contiguous(), found, starts, slots,
            parts, lses, splits, 2, scale, 1.0, 1.0, logit_cap, sinks,
        )  # fmt: skip
        out[at] = found
    return out
