"""
Six definitions in the format of flashinfer-bench, in our own words, each with answers: a right one,
one that a plain allclose(1e-2, 1e-2) on normal numbers notices, and one that it does not.
"""

from typing import Any


def definition(
    name: str,
    axes: dict[str, int | None],
    inputs: dict[str, str],
    outputs: dict[str, str],
    reference: str,
    constraints: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Write a definition; of an array: its dtype, then its axes, "null" for a scalar."""

    def spec(text: str) -> dict[str, Any]:
        dtype, *shape = text.split()
        return {"shape": None if shape == ["null"] else shape, "dtype": dtype}

    return {
        "name": name,
        "op_type": name,
        "axes": {
            k: {"type": "var"} if n is None else {"type": "const", "value": n}
            for k, n in axes.items()
        },
        "inputs": {k: spec(text) for k, text in inputs.items()},
        "outputs": {k: spec(text) for k, text in outputs.items()},
        "constraints": [*constraints],
        "reference": "import math\nimport torch\n\n\n@torch.no_grad()\n" + reference,
    }


RMSNORM = definition(
    "row_norm_h64",
    {"rows": None, "width": 64},
    {"x": "bfloat16 rows width", "gain": "bfloat16 width"},
    {"y": "bfloat16 rows width"},
    """def run(x, gain):
    assert x.shape[1] == 64
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-5)
    return (wide * scale * gain.to(torch.float32)).to(torch.bfloat16)
""",
)
FUSED = definition(
    "add_then_norm_h32",
    {"rows": None, "width": 32},
    {"x": "bfloat16 rows width", "residual": "bfloat16 rows width", "gain": "bfloat16 width"},
    {"y": "bfloat16 rows width"},
    """def run(x, residual, gain):
    total = x.to(torch.float32) + residual.to(torch.float32)
    root = torch.sqrt(total.square().mean(dim=-1, keepdim=True) + 1e-5)
    return (total / root * gain.to(torch.float32)).to(torch.bfloat16)
""",
)
PRODUCT = definition(
    "product_n24_k40",
    {"M": None, "N": 24, "K": 40},
    {"A": "float16 M K", "B": "float16 N K"},
    {"C": "float16 M N"},
    """def run(A, B):
    return A @ B.T
""",
)
DECODE = definition(
    "paged_decode_h4_kv2_d8",
    {
        **{"batch": None, "heads": 4, "shared": 2, "width": 8, "pages": None, "slots": 1},
        **{"ends": None, "listed": None},
    },
    {
        "q": "bfloat16 batch heads width",
        "keys": "bfloat16 pages slots shared width",
        "values": "bfloat16 pages slots shared width",
        "indptr": "int32 ends",
        "indices": "int32 listed",
        "sm_scale": "float32 null",
    },
    {"o": "bfloat16 batch heads width", "lse": "float32 batch heads"},
    """def run(q, keys, values, indptr, indices, sm_scale):
    k_all = keys.squeeze(1).float().repeat_interleave(2, dim=1)
    v_all = values.squeeze(1).float().repeat_interleave(2, dim=1)
    o = torch.zeros(q.shape, dtype=torch.bfloat16)
    lse = torch.full(q.shape[:2], float("-inf"), dtype=torch.float32)
    for b in range(q.shape[0]):
        first, last = int(indptr[b]), int(indptr[b + 1])
        if first == last:
            continue
        places = indices[first:last].long()
        scores = torch.einsum("hd,phd->hp", q[b].float(), k_all[places]) * sm_scale
        lse[b] = torch.logsumexp(scores, dim=-1) / math.log(2.0)
        weights = torch.softmax(scores, dim=-1)
        o[b] = torch.einsum("hp,phd->hd", weights, v_all[places]).to(torch.bfloat16)
    return o, lse
""",
    ("ends == batch + 1", "listed == indptr[-1].item()"),
)
SAMPLING = definition(
    "kept_probabilities_v20",
    {"rows": None, "vocabulary": 20},
    {"logits": "float32 rows vocabulary", "top_k": "int32 rows"},
    {"p": "float32 rows vocabulary"},
    """def run(logits, top_k):
    probabilities = torch.softmax(logits, dim=-1)
    order = torch.argsort(probabilities, dim=-1, descending=True)
    rank = torch.argsort(order, dim=-1)
    kept = torch.where(rank < top_k[:, None], probabilities, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)
""",
)
ROUTING = definition(
    "route_e6_k2",
    {"tokens": None, "experts": 6},
    {"logits": "float32 tokens experts", "bias": "float32 experts"},
    {"weights": "float32 tokens experts"},
    """def run(logits, bias):
    scores = torch.sigmoid(logits)
    chosen = (scores + bias).topk(2, dim=-1).indices
    kept = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    return 2.5 * kept / (kept.sum(dim=-1, keepdim=True) + 1e-20)
""",
)
HEAD = "import math\nimport torch\n\n\n"
WIDE_NORM = (
    HEAD
    + """def run(x, gain):
    wide = x.float()
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gain.float()).to(x.dtype)
"""
)
WIDE_FUSED = (
    HEAD
    + """def run(x, residual, gain, y):
    total = x.float() + residual.float()
    y.copy_(total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * gain.float())
"""
)
WIDE_PRODUCT = (
    HEAD
    + """def run(A, B):
    return (A.float() @ B.float().T).to(A.dtype)
"""
)
LOOP = (
    HEAD
    + """def run(q, keys, values, indptr, indices, sm_scale, o, lse):
    o.zero_()
    lse.fill_(float("-inf"))
    for b in range(len(q)):
        at = indices[indptr[b] : indptr[b + 1]].long()
        for h in range(4):
            k, v = keys[at, 0, h // 2].float(), values[at, 0, h // 2].float()
            s = (k @ q[b, h].float()) * sm_scale * math.log2(math.e)
            if len(at):
                e = torch.exp2(s - s.max())
                o[b, h] = (e @ v) / e.sum()
                lse[b, h] = s.max() + torch.log2(e.sum())
"""
)
KEPT = (
    HEAD
    + """def run(logits, top_k):
    e = torch.exp(logits - logits.amax(-1, keepdim=True))
    order = torch.argsort(e, dim=-1, descending=True)
    places = torch.arange(e.shape[-1]).expand_as(e)
    kept = torch.zeros_like(e).scatter(-1, order, (places < top_k[:, None]).to(e.dtype)) * e
    total = kept.sum(-1, keepdim=True)
    return kept / total
"""
)
ROUTE = (
    HEAD
    + """def run(logits, bias):
    scores = 1 / (1 + torch.exp(-logits))
    chosen = torch.argsort(scores + bias, dim=-1, descending=True)[:, :2]
    kept = torch.zeros_like(scores)
    for n, pair in enumerate(chosen):
        kept[n, pair] = scores[n, pair]
    return kept * (2.5 / (kept.sum(-1, keepdim=True) + 1e-20))
"""
)

EXAMPLES: dict[str, tuple[dict[str, Any], str, tuple[str, str], tuple[str, str]]] = {
    "rmsnorm": (
        *(RMSNORM, WIDE_NORM),
        *(("* gain.float()", "* (1 + gain.float())"), ("+ 1e-5", "+ 1e-3")),
    ),
    "fused add rmsnorm": (
        *(FUSED, WIDE_FUSED),
        *(("x.float() + residual.float()", "x.float()"), ("+ 1e-5", "+ 1e-3")),
    ),
    "gemm": (
        *(PRODUCT, WIDE_PRODUCT),
        *(("B.float().T", "-B.float().T"), (".to(A.dtype)", ".to(torch.bfloat16).to(A.dtype)")),
    ),
    "gqa paged decode": (
        *(DECODE, LOOP),
        *(("h // 2", "h % 2"), ("log2(e.sum())", "log2(e.sum() + 1e-3)")),
    ),
    "top-k probabilities": (
        *(SAMPLING, KEPT),
        *(("< top_k", "<= top_k"), ("kept / total", "kept / (total + 1e-3)")),
    ),
    "moe routing": (
        *(ROUTING, ROUTE),
        *(("(scores + bias", "(scores - bias"), ("+ 1e-20", "+ 1e-3")),
    ),
}
"""By kind: definition, right answer, and what is exchanged in it for the two wrong ones."""
