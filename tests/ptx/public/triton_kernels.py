"""Kernels in Triton: tutorials, Liger-Kernel, and vLLM's unified attention as aiter has it."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.ptx.public.files import Case, bare_package, definitions

__all__ = ["TRITON"]

Pairs = dict[str, tuple[Any, Any]]
HALF, SINGLE = 2.0**-11, 2.0**-24
TUTORIALS, LIGER, AITER = "triton_learn", "Liger-Kernel", "aiter"
UNIFIED = "aiter/ops/triton/_triton_kernels/attention/unified_attention.py"


def normal(
    *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False
) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_(requires_grad)


def wide(x: torch.Tensor) -> Any:
    return x.detach().cpu().double().numpy()


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# tutorials


def fused_softmax(folder: Path) -> Pairs:
    x = normal(50, 181)
    y = definitions(folder / "tutorials/02-fused-softmax.py", "softmax").softmax(x)
    return {"y": (wide(y), softmax(wide(x)))}


def halves(M: int, N: int, K: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    a, b = normal(M, K, dtype=torch.float16), normal(K, N, dtype=torch.float16)
    return a, b, wide(a) @ wide(b)


def matmul_leaky_relu(folder: Path) -> Pairs:
    a, b, product = halves(96, 200, 80)
    module = definitions(folder / "tutorials/03-matrix-multiplication.py", "matmul")
    wanted = np.where(product >= 0, product, 0.01 * product)
    return {"c": (wide(module.matmul(a, b, activation="leaky_relu")), wanted)}


def philox(seed: int, offsets: Any) -> Any:
    """Return the first of four words of Philox 4x32-10, counted by ``offsets``."""
    c = [offsets.astype(np.uint64), *(np.zeros(len(offsets), np.uint64) for _ in range(3))]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high = [x >> np.uint64(32) for x in (a, b)]
        c = [high[1] ^ c[1] ^ np.uint64(k[0]), b & low, high[0] ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def seeded_dropout(folder: Path) -> Pairs:
    x, p = normal(3000), 0.4
    module = definitions(folder / "tutorials/04-low-memory-dropout.py", "seeded_dropout")
    bits = philox(123, np.arange(3000)).astype(np.uint32).view(np.int32).astype(np.int64)
    uniform = np.where(bits < 0, -bits - 1, bits) * 2.0**-31
    wanted = np.where(uniform > p, wide(x) / (1 - p), 0)
    return {"y": (wide(module.seeded_dropout(x, p, 123)), wanted)}


def normalised(x: Any, eps: float) -> tuple[Any, Any]:
    """Return the rows less their means, over their deviations; and 1 / these deviations."""
    r = 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
    return (x - x.mean(-1, keepdims=True)) * r, r


def layer_norm(folder: Path, rows: int) -> tuple[torch.Tensor, ...]:
    module = definitions(folder / "tutorials/05-layer-norm.py", "LayerNorm")
    x, w, b = (normal(*s, requires_grad=True) for s in ((rows, 200), (200,), (200,)))
    return x, w, b, module.LayerNorm.apply(x, (200,), w, b, 1e-5)


def layer_norm_forward(folder: Path) -> Pairs:
    x, w, b, y = layer_norm(folder, 40)
    return {"y": (wide(y), normalised(wide(x), 1e-5)[0] * wide(w) + wide(b))}


def layer_norm_backward(folder: Path) -> Pairs:
    """300 rows for 256 locks: 44 of these are fought for."""
    x, w, b, y = layer_norm(folder, 300)
    g = normal(300, 200)
    y.backward(g)
    n, r = normalised(wide(x), 1e-5)
    t = wide(g) * wide(w)
    dx = r * (t - n * (t * n).mean(-1, keepdims=True) - t.mean(-1, keepdims=True))
    assert x.grad is not None and w.grad is not None and b.grad is not None
    return {
        "dx": (wide(x.grad), dx),
        "dw": (wide(w.grad), (wide(g) * n).sum(0)),
        "db": (wide(b.grad), wide(g).sum(0)),
    }


def layer_norm_partial_sums(folder: Path) -> Pairs:
    kernel = definitions(folder / "tutorials/05-layer-norm.py", "_layer_norm_bwd_dwdb")
    dw, db = normal(70, 200), normal(70, 200)
    out = [torch.empty(200, device="cuda") for _ in range(2)]
    kernel._layer_norm_bwd_dwdb[(2,)](
        dw, db, *out, 70, 200, BLOCK_SIZE_M=32, BLOCK_SIZE_N=128, num_ctas=1
    )
    return {"dw": (wide(out[0]), wide(dw).sum(0)), "db": (wide(out[1]), wide(db).sum(0))}


def grouped_gemm(folder: Path) -> Pairs:
    """Two products; the kernel takes whole tiles, and finds its matrices by addresses."""
    module = definitions(folder / "tutorials/08-grouped-gemm.py", "group_gemm_fn")
    first, second = halves(128, 256, 64), halves(256, 128, 96)
    c = module.group_gemm_fn([first[0], second[0]], [first[1], second[1]])
    return {"first": (wide(c[0]), first[2]), "second": (wide(c[1]), second[2])}


def persistent(folder: Path) -> Pairs:
    a, b, product = halves(200, 150, 100)
    module = definitions(folder / "tutorials/09-persistent-matmul.py", "matmul_persistent")
    return {"c": (wide(module.matmul_persistent(a, b)), product)}


def persistent_descriptors(folder: Path) -> Pairs:
    a, b, product = halves(200, 144, 96)
    file = folder / "tutorials/09-persistent-matmul.py"
    module = definitions(file, "matmul_descriptor_persistent")
    c = module.matmul_descriptor_persistent(a, b.T.contiguous(), False)
    return {"c": (wide(c), product)}


# Liger-Kernel


def liger(folder: Path, module: str, name: str) -> Any:
    bare_package("liger_kernel", folder / "src/liger_kernel")
    bare_package("liger_kernel.ops", folder / "src/liger_kernel/ops")
    return getattr(definitions(folder / f"src/liger_kernel/ops/{module}.py", name), name)


def rms_norm(folder: Path) -> tuple[Any, ...]:
    function = liger(folder, "rms_norm", "LigerRMSNormFunction")
    x, w = normal(30, 200, requires_grad=True), normal(200, requires_grad=True)
    y = function.apply(x, w, 1e-6, 0.0, "llama", False)
    r = 1 / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6)
    return x, w, y, r


def rms_norm_forward(folder: Path) -> Pairs:
    x, w, y, r = rms_norm(folder)
    return {"y": (wide(y), wide(x) * r * wide(w))}


def rms_norm_backward(folder: Path) -> Pairs:
    x, w, y, r = rms_norm(folder)
    g = normal(30, 200)
    y.backward(g)
    n, t = wide(x) * r, wide(g) * wide(w)
    dx = r * (t - n * (t * n).mean(-1, keepdims=True))
    return {"dx": (wide(x.grad), dx), "dw": (wide(w.grad), (wide(g) * n).sum(0))}


def cross_entropy(folder: Path) -> Pairs:
    """Mean over the rows that count, labels smoothed by a tenth; the gradient in place."""
    function, smoothing, V = liger(folder, "cross_entropy", "LigerCrossEntropyFunction"), 0.1, 300
    leaf = normal(9, V, requires_grad=True)
    labels = torch.tensor([3, -100, 299, 0, 17, -100, 5, 5, 120], device="cuda")
    loss = function.apply(leaf * 1, labels, None, -100, 0.0, smoothing, "mean")[0]
    loss.backward()
    x, y = wide(leaf), labels.cpu().numpy()
    p, counts = softmax(x), y != -100
    target = np.full_like(p, smoothing / V)
    target[np.arange(9), np.where(counts, y, 0)] += 1 - smoothing
    each = -(target * np.log(p)).sum(-1)
    dx = (p - target) * counts[:, None] / counts.sum()
    assert leaf.grad is not None
    return {"loss": (wide(loss), each[counts].mean()), "dx": (wide(leaf.grad), dx)}


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def rope(folder: Path) -> Pairs:
    function = liger(folder, "rope", "LigerRopeFunction")
    q, k = normal(2, 4, 7, 48, requires_grad=True), normal(2, 2, 7, 48, requires_grad=True)
    angle = torch.outer(torch.arange(7.0), 10000 ** (-torch.arange(24) / 24)).repeat(1, 2)[None]
    cos, sin = angle.cos().cuda(), angle.sin().cuda()
    got = function.apply(q * 1, k * 1, cos, sin)
    gq, gk = normal(2, 4, 7, 48), normal(2, 2, 7, 48)
    torch.autograd.backward(got, (gq.clone(), gk.clone()))
    c, s = wide(cos), wide(sin)
    assert q.grad is not None and k.grad is not None
    return {
        "q": (wide(got[0]), rotated(wide(q), c, s)),
        "k": (wide(got[1]), rotated(wide(k), c, s)),
        "dq": (wide(q.grad), rotated(wide(gq), c, -s)),
        "dk": (wide(k.grad), rotated(wide(gk), c, -s)),
    }


# unified attention


class Pages:
    """Three sequences of 5, 1 and 9 queries over 37, 50 and 9 keys, in pages of 16; two heads of
    keys for four of queries."""

    queries, keys, page, heads, groups, width = (5, 1, 9), (37, 50, 9), 16, 4, 2, 32

    def __init__(self) -> None:
        tokens, most = sum(self.queries), 4
        shape = 3 * most, self.page, self.heads // self.groups, self.width
        self.q = normal(tokens, self.heads, self.width, dtype=torch.float16)
        self.k, self.v = (normal(*shape, dtype=torch.float16) for _ in range(2))
        self.table = torch.randperm(3 * most).to(torch.int32).reshape(3, most).cuda()
        self.lengths = torch.tensor(self.keys, dtype=torch.int32, device="cuda")
        starts = np.cumsum([0, *self.queries])
        self.starts = torch.tensor(starts, dtype=torch.int32, device="cuda")
        self.block_q = 16 // self.groups
        self.blocks = tokens // self.block_q + 3

    def given(self) -> dict[str, Any]:
        """Return what the kernels of one and of several passes are both given."""
        strides = {
            f"stride_{which}_cache_{i}": step
            for which, cache in (("k", self.k), ("v", self.v))
            for i, step in enumerate(cache.stride())
        }
        absent = ("sink", "alibi_slopes", "qq_bias", "q_descale", "k_descale", "v_descale",
                  "out_scale")  # fmt: skip
        switches = ("USE_ALIBI_SLOPES", "USE_QQ_BIAS", "USE_SOFTCAP", "USE_SINKS")
        return {
            **{f"{name}_ptr": None for name in absent}, **dict.fromkeys(switches, False),
            **strides, "query_ptr": self.q, "key_cache_ptr": self.k, "value_cache_ptr": self.v,
            "block_tables_ptr": self.table, "seq_lens_ptr": self.lengths, "scale": self.width**-0.5,
            "softcap": 0.0, "num_query_heads": self.heads, "num_queries_per_kv": self.groups,
            "block_table_stride": self.table.stride(0), "query_stride_0": self.q.stride(0),
            "query_stride_1": self.q.stride(1), "qq_bias_stride_0": 0, "BLOCK_SIZE": self.page,
            "TILE_SIZE": self.page, "HEAD_SIZE": self.width, "HEAD_SIZE_PADDED": self.width,
            "SLIDING_WINDOW": 0, "query_start_len_ptr": self.starts, "BLOCK_Q": self.block_q,
            "num_seqs": 3, "BLOCK_M": 16, "num_warps": 2, "num_stages": 2,
        }  # fmt: skip

    def wanted(self) -> Any:
        out, first = [], 0
        q, k, v = wide(self.q), wide(self.k), wide(self.v)
        for i, (n, m) in enumerate(zip(self.queries, self.keys, strict=True)):
            rows = self.table[i].cpu().numpy()
            own = [x[rows].reshape(-1, *x.shape[2:])[:m].repeat(self.groups, 1) for x in (k, v)]
            score = np.einsum("nhd,mhd->hnm", q[first : first + n], own[0]) * self.width**-0.5
            hidden = np.arange(m) > np.arange(m - n, m)[:, None]
            weights = softmax(np.where(hidden, -np.inf, score))
            out.append(np.einsum("hnm,mhd->nhd", weights, own[1]))
            first += n
        return np.concatenate(out)


def unified(folder: Path) -> ModuleType:
    for name in ("aiter", "aiter.ops", "aiter.ops.triton", "aiter.ops.triton.utils"):
        bare_package(name, folder / name.replace(".", "/"))
    names = "kernel_unified_attention_2d", "kernel_unified_attention_3d", "reduce_segments"
    return definitions(folder / UNIFIED, *names)


def unified_2d(folder: Path) -> Pairs:
    pages = Pages()
    out = torch.empty_like(pages.q)
    unified(folder).kernel_unified_attention_2d[(2, pages.blocks)](
        output_ptr=out, output_stride_0=out.stride(0), output_stride_1=out.stride(1),
        **pages.given(),
    )  # fmt: skip
    return {"out": (wide(out), pages.wanted())}


def segments(tokens: int, heads: int, width: int) -> list[torch.Tensor]:
    shapes = (tokens, heads, 4, width), (tokens, heads, 4), (tokens, heads, 4)
    return [torch.zeros(shape, device="cuda") for shape in shapes]


def unified_3d(folder: Path) -> Pairs:
    """The keys in four parts, which are put together here."""
    pages = Pages()
    out, top, total = segments(*pages.q.shape)
    top.fill_(-torch.inf)
    given = pages.given() | {"waves_per_eu": 2, "NUM_SEGMENTS_PER_SEQ": 4}
    unified(folder).kernel_unified_attention_3d[(pages.blocks, 2, 4)](
        segm_output_ptr=out, segm_max_ptr=top, segm_expsum_ptr=total, **given
    )
    weight = np.exp2(wide(top) - wide(top).max(-1, keepdims=True))
    whole = (wide(out) * weight[..., None]).sum(2) / (wide(total) * weight).sum(-1)[..., None]
    return {"out": (whole, pages.wanted())}


def unified_reduce(folder: Path) -> Pairs:
    """What four parts of any numbers come to; 37 keys fill three of them, in pages of 16."""
    parts, out = segments(15, 4, 32), torch.empty(15, 4, 32, device="cuda", dtype=torch.float16)
    for each in parts:
        each.copy_(torch.rand(each.shape))
    pages = Pages()
    unified(folder).reduce_segments[(15, 4)](
        output_ptr=out, segm_output_ptr=parts[0], segm_max_ptr=parts[1], segm_expsum_ptr=parts[2],
        seq_lens_ptr=pages.lengths, num_seqs=3, num_query_heads=4, out_scale_ptr=None,
        output_stride_0=out.stride(0), output_stride_1=out.stride(1), block_table_stride=4,
        TILE_SIZE=16, HEAD_SIZE=32, HEAD_SIZE_PADDED=32, query_start_len_ptr=pages.starts,
        BLOCK_Q=8, NUM_SEGMENTS_PER_SEQ=4,
    )  # fmt: skip
    tiles = -(-np.array(pages.keys) // 16)
    counted = -(-tiles // -(-tiles // 4))  # of the four parts, those that hold a page
    inside = np.arange(4) < np.repeat(counted, pages.queries)[:, None, None]
    value, top, total = map(wide, parts)
    top = np.where(inside, top, -np.inf)
    weight = np.exp2(top - top.max(-1, keepdims=True))
    wanted = (value * weight[..., None]).sum(2) / (total * weight).sum(-1)[..., None]
    return {"out": (wide(out), wanted)}


TRITON = (
    Case("02 softmax_kernel", TUTORIALS, "tutorials/02-fused-softmax.py", fused_softmax, SINGLE),
    Case("03 matmul_kernel, leaky_relu", TUTORIALS, "tutorials/03-matrix-multiplication.py",
         matmul_leaky_relu, HALF),
    Case("04 _seeded_dropout", TUTORIALS, "tutorials/04-low-memory-dropout.py", seeded_dropout,
         SINGLE),
    Case("05 _layer_norm_fwd_fused", TUTORIALS, "tutorials/05-layer-norm.py", layer_norm_forward,
         SINGLE),
    Case("05 _layer_norm_bwd_dx_fused (spin locks)", TUTORIALS, "tutorials/05-layer-norm.py",
         layer_norm_backward, SINGLE),
    Case("05 _layer_norm_bwd_dwdb", TUTORIALS, "tutorials/05-layer-norm.py",
         layer_norm_partial_sums, SINGLE),
    Case("08 grouped_matmul_kernel (addresses in a tensor)", TUTORIALS,
         "tutorials/08-grouped-gemm.py", grouped_gemm, HALF),
    Case("09 matmul_kernel_persistent", TUTORIALS, "tutorials/09-persistent-matmul.py",
         persistent, HALF),
    Case("09 matmul_kernel_descriptor_persistent", TUTORIALS, "tutorials/09-persistent-matmul.py",
         persistent_descriptors, HALF),
    Case("_rms_norm_forward_kernel", LIGER, "src/liger_kernel/ops/rms_norm.py", rms_norm_forward,
         SINGLE),
    Case("_rms_norm_backward_kernel", LIGER, "src/liger_kernel/ops/rms_norm.py",
         rms_norm_backward, SINGLE),
    Case("liger_cross_entropy_kernel", LIGER, "src/liger_kernel/ops/cross_entropy.py",
         cross_entropy, SINGLE),
    Case("_triton_rope", LIGER, "src/liger_kernel/ops/rope.py", rope, SINGLE),
    Case("kernel_unified_attention_2d", AITER, UNIFIED, unified_2d, HALF),
    Case("kernel_unified_attention_3d", AITER, UNIFIED, unified_3d, HALF),
    Case("reduce_segments", AITER, UNIFIED, unified_reduce, HALF),
)  # fmt: skip
