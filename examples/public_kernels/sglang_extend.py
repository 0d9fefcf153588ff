"""
extend_attention.py of sgl-project/sglang (Apache-2.0), seen in 0.5.23: prompts behind a cached
prefix, whose keys lie in slots of a pool, while those of the prompt itself come with it.

    git clone https://github.com/sgl-project/sglang $PUBLIC_KERNELS/sglang
    attnverify run examples/public_kernels/sglang_extend.py --profile quick --dtype float16

or, with nothing but the wheel: ``pip install --no-deps --target $PUBLIC_KERNELS/sglang/python
sglang``. Adapted: its package is entered without ``__init__``, and what it asks of the server and
the machine is answered; the last keys of each sequence, as many as it has rows, are gathered from
their slots, as the model has them at hand. What has more rows than keys it does not take.
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
asked = ("is_cuda", "is_hip", "is_gfx95_supported", "is_gfx1250_supported", "get_device_core_count")
server = SimpleNamespace(**dict.fromkeys(asked, lambda *_: 0), envs=None)
for name in ("sglang.srt", "sglang.srt.environ", "sglang.srt.utils"):
    sys.modules.setdefault(name, ModuleType(name)).__dict__.update(vars(server))
extend = import_module("sglang.kernels.ops.attention.extend_attention")
extend._is_cuda, extend.CUDA_CAPABILITY = True, (9, 0)

TARGET = "sm_90a"
DTYPES = ("float16", "bfloat16")
FEATURES = {"gradient": False, "width": (16, 32, 64, 128)}


def paged_attention(
    q, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, causal=False, sm_scale=None,
    logit_cap=0.0, sinks=None, window_size=(-1, -1),
):  # fmt: skip
    rows, keys = qo_indptr.diff(), kv_indptr.diff()
    if (rows > keys).any():
        raise NotImplementedError("each row's own key is there")
    if window_size[0] == 0 or window_size[1] != (-1 if causal else window_size[0]):
        raise NotImplementedError("one number says how far a window reaches, and 0 that none does")
    own = slice(int(qo_indptr[0]), int(qo_indptr[-1]))
    out = torch.zeros(*q.shape[:2], v_buffer.shape[2], dtype=q.dtype)
    lse = torch.zeros(q.shape[:2]) + (-torch.inf if sinks is None else sinks)  # of no sequence
    ends = kv_indptr[1:].tolist()
    last = [kv_indices[e - n : e] for e, n in zip(ends, rows.tolist(), strict=True)]
    starts = kv_indptr[:-1].tolist()
    before = [kv_indices[s : e - n] for s, e, n in zip(starts, ends, rows.tolist(), strict=True)]
    if own.stop > own.start:
        at, prefix = torch.cat(last), torch.cat(before).int()
        starts = torch.cat([kv_indptr[:1] * 0, (keys - rows).cumsum(0)]).int()
        extend.extend_attention_fwd(
            q[own].contiguous(), k_buffer[at].contiguous(), v_buffer[at].contiguous(), out[own],
            k_buffer.contiguous(), v_buffer.contiguous(), (qo_indptr - qo_indptr[0]).int(), starts,
            prefix, None, causal, None, int(rows.max()), 1.0, 1.0, sm_scale, logit_cap,
            sliding_window_size=window_size[0], sinks=sinks, lse_extend=lse[own],
        )  # fmt: skip
    return out, lse
