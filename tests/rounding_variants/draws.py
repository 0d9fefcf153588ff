"""
Random inputs for the tests of the bounds: small cases of every operation, over the value families
that strain them.
"""

from typing import Any

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from attnverify.catalogue.dtypes import round_to, tiny

FAMILIES = (
    "normal", "small", "large_logits", "extreme_logits", "cancel", "ties", "const_v", "offset_v",
    "subnormal", "huge", "peaked", "lattice", "sorted_up", "identity",
)  # fmt: skip
MASKS = ("none", "bool", "hidden rows", "additive", "infinite", "lowest", "shared")


def draw(operation: str, rng: Generator, dtype: str) -> dict[str, Any]:
    """The inputs of one small case, all floats exactly representable in the dtype."""
    inputs = CASES[operation.removesuffix("_grad")](rng)
    if operation.endswith("_grad"):
        inputs = {"d_output": normal(rng, *_output_shape(operation, inputs)), **inputs}
    if "query" in inputs and "parameters" not in inputs:
        _strain(inputs, rng.choice(FAMILIES), rng, dtype)
    return {name: rounded(x, dtype) for name, x in inputs.items()}


def rounded(x: Any, dtype: str) -> Any:
    if isinstance(x, dict):
        return {name: rounded(value, dtype) for name, value in x.items()}
    if isinstance(x, list):
        return [rounded(each, dtype) for each in x]
    return round_to(x, dtype) if isinstance(x, ndarray) and x.dtype != bool else x


def normal(rng: Generator, *shape: int) -> ndarray:
    return np.asarray(rng.standard_normal(shape))


def size(rng: Generator, most: int = 9) -> int:
    return int(rng.choice([1, 1, 2, 3, int(rng.integers(1, most + 1))]))


def _output_shape(operation: str, inputs: dict[str, Any]) -> tuple[int, ...]:
    return (*inputs["query"].shape[:-1], inputs["value"].shape[-1])


def _strain(inputs: dict[str, Any], family: str, rng: Generator, dtype: str) -> None:
    q, k, v = inputs["query"], inputs["key"], inputs.get("value", inputs["key"])
    scale = {"small": 1e-3, "large_logits": 4.0, "extreme_logits": 30.0, "huge": 10.0}.get(
        family, 1.0
    )
    q, k = q * scale, k * scale
    if family == "cancel" and k.shape[-1] > 1:
        k[..., 1:] -= k.sum(-1, keepdims=True) / (k.shape[-1] - 1)
    elif family == "ties":
        k = np.broadcast_to(k[..., :1, :], k.shape).copy()
    elif family == "const_v":
        v = np.full_like(v, 1.7)
    elif family == "offset_v":
        v = v + 100.0
    elif family == "subnormal":
        v = v * tiny(dtype) * rng.choice([0.1, 1.0, 4.0])
    elif family == "huge":
        v = v * 1000.0
    elif family == "peaked" and k.shape[-1] == q.shape[-1]:
        k[..., int(rng.integers(k.shape[-2])), :] = 3 * q[..., 0, :]
    elif family == "lattice":
        q, k, v = (np.round(2 * x) / 2 for x in (q, k, v))
    elif family == "sorted_up":
        k = np.sort(k, axis=-2)
    elif family == "identity":
        v = np.broadcast_to(np.eye(*v.shape[-2:]), v.shape).copy()
    inputs |= {"query": q, "key": k} | ({"value": v} if "value" in inputs else {})


def mask(rng: Generator, *shape: int, float_too: bool = True) -> ndarray | None:
    """
    A mask of shape [N M] up to [B H N M], of every kind; its leading axes and its rows may be
    broadcast.
    """
    kind = rng.choice(MASKS if float_too else MASKS[:3])
    if kind == "none":
        return None
    shape = shape[int(rng.integers(len(shape) - 1)) :] if rng.random() < 0.5 else shape
    shape = tuple(
        1 if i < len(shape) - 1 and rng.random() < 0.3 else n for i, n in enumerate(shape)
    )
    seen = rng.random(shape) < 0.7
    if kind == "hidden rows":
        seen[..., : (shape[-2] + 1) // 2, :] = False
    if kind in ("bool", "hidden rows"):
        return seen
    if kind == "infinite":
        return np.where(seen, normal(rng, *shape), -np.inf)
    if kind == "lowest":
        return np.where(seen, 0.0, rng.choice([-1e4, -3e4, -1e9, -3e38]))
    return normal(rng, *shape) * rng.choice([1.0, 10.0])


def _heads(rng: Generator, *, same: bool = False) -> tuple[dict[str, Any], tuple[int, ...]]:
    B, H, N, D, E = size(rng, 3), size(rng, 3), size(rng), size(rng, 16), size(rng)
    M = N if same else size(rng)
    return {
        "query": normal(rng, B, H, N, D),
        "key": normal(rng, B, H, M, D),
        "value": normal(rng, B, H, M, E),
    }, (B, H, N, M)


def _kept(rng: Generator, *shape: int) -> dict[str, Any]:
    if rng.random() < 0.7:
        return {}
    return {"keep": rng.random(shape) < 0.7, "p": float(rng.choice([0.0, 0.1, 0.3, 0.75]))}


def _scaled_dot(rng: Generator) -> dict[str, Any]:
    inputs, shape = _heads(rng)
    return {**inputs, "mask": mask(rng, *shape), **_kept(rng, *shape)}


def _additive_score(rng: Generator) -> dict[str, Any]:
    B, N, M, Q, K, A = (size(rng) for _ in range(6))
    w = {"w_query": normal(rng, A, Q), "w_key": normal(rng, A, K), "w_score": normal(rng, A)}
    return {"query": normal(rng, B, N, Q), "key": normal(rng, B, M, K), **w}


def _additive(rng: Generator) -> dict[str, Any]:
    inputs = _additive_score(rng)
    (B, N), M = inputs["query"].shape[:2], inputs["key"].shape[1]
    q, k = inputs.pop("query"), inputs.pop("key")
    more = {"mask": mask(rng, B, N, M), **_kept(rng, B, N, M)}
    return {"query": q, "key": k, "value": normal(rng, B, M, size(rng)), **inputs, **more}


def _alibi(rng: Generator) -> dict[str, Any]:
    inputs, shape = _heads(rng)
    return {**inputs, "visible": mask(rng, *shape, float_too=False)}


def _txl_score(rng: Generator) -> dict[str, Any]:
    inputs, (_, H, _, M) = _heads(rng)
    D = inputs["query"].shape[-1]
    return {
        "query": inputs["query"], "key": inputs["key"],
        "position": normal(rng, H, M, D), "u": normal(rng, H, D), "v": normal(rng, H, D),
    }  # fmt: skip


def _txl(rng: Generator) -> dict[str, Any]:
    inputs = _txl_score(rng)
    B, H, N, _ = inputs["query"].shape
    M = inputs["key"].shape[2]
    return {
        **inputs,
        "value": normal(rng, B, H, M, size(rng)),
        "visible": mask(rng, B, H, N, M, float_too=False),
    }


def _tables(rng: Generator, H: int, D: int, longest: int) -> dict[str, Any]:
    P = longest + int(rng.integers(3))
    tables = {
        "key_pos_embeddings": normal(rng, 2 * P, H, D),
        "key_pos_bias": normal(rng, 2 * P, H),
        "query_pos_bias": normal(rng, H, D),
    }
    return tables


def _learned_score(rng: Generator) -> dict[str, Any]:
    inputs, (_, H, N, M) = _heads(rng)
    del inputs["value"]
    return {
        **inputs,
        **_tables(rng, H, inputs["query"].shape[-1], max(N, M)),
        "align": str(rng.choice(["start", "end"])),
    }


def _learned(rng: Generator) -> dict[str, Any]:
    inputs = _learned_score(rng)
    B, H, N, _ = inputs["query"].shape
    M = inputs["key"].shape[2]
    return {
        **inputs,
        "value": normal(rng, B, H, M, size(rng)),
        "visible": mask(rng, B, H, N, M, float_too=False),
    }


def _softmax(rng: Generator) -> dict[str, Any]:
    shape = size(rng, 3), size(rng, 3), size(rng), size(rng)
    return {
        "score": normal(rng, *shape) * rng.choice([1e-2, 1.0, 10.0, 100.0]),
        "mask": mask(rng, *shape),
    }


def _dropout(rng: Generator) -> dict[str, Any]:
    shape = size(rng, 3), size(rng, 3), size(rng), size(rng)
    return {
        "weights": rng.random(shape),
        "keep": rng.random(shape) < 0.7,
        "p": float(rng.choice([0.0, 0.1, 0.3, 0.75])),
    }


def _weights(rng: Generator, names: str, F: int, bias: float = 0.7) -> dict[str, Any]:
    scale = rng.choice([0.3, 1.0])
    given: dict[str, Any] = {}
    for name in names.split():
        rows = 3 * F if name == "qkv_net" else F
        given[f"{name}.weight"] = normal(rng, rows, F) * scale
        if rng.random() < bias:
            given[f"{name}.bias"] = normal(rng, rows)
    return given


def _self_attention(rng: Generator) -> dict[str, Any]:
    B, N, F, K, E = (size(rng) for _ in range(5))
    weights = {
        "w_query": normal(rng, K, F),
        "w_key": normal(rng, K, F),
        "w_value": normal(rng, E, F),
    }
    return {"x": normal(rng, B, N, F), "parameters": weights, "mask": mask(rng, B, N, N)}


def _multi_head(rng: Generator, self_too: bool = False) -> dict[str, Any]:
    B, H, D, N, M = size(rng, 3), size(rng, 3), size(rng, 4), size(rng), size(rng)
    F, M = H * D, N if self_too else M
    attn = mask(rng, N, M) if rng.random() < 0.5 else mask(rng, B * H, N, M)
    full = (N, M) if attn is None or attn.ndim == 2 else (B * H, N, M)
    attn = None if attn is None else np.broadcast_to(attn, full).copy()
    options = {
        "attn_mask": attn,
        "key_padding_mask": rng.random((B, M)) < 0.3 if rng.random() < 0.5 else None,
    }
    common = {
        "parameters": _weights(rng, "q_proj k_proj v_proj out_proj", F),
        "num_heads": H,
        **options,
    }
    if self_too:
        return {"x": normal(rng, B, N, F), **common}
    return {
        "query": normal(rng, B, N, F),
        "key": normal(rng, B, M, F),
        "value": normal(rng, B, M, F),
        **common,
    }


def _relative_layer(rng: Generator) -> dict[str, Any]:
    B, H, D, N, M = size(rng, 3), size(rng, 3), size(rng, 4), size(rng), size(rng)
    F = H * D
    weights = _weights(rng, "query.linear key.linear", F, 0.0) | _weights(
        rng, "value.linear output", F
    )
    inputs = {
        "query": normal(rng, B, N, F),
        "key": normal(rng, B, M, F),
        "value": normal(rng, B, M, F),
    }
    weights |= _tables(rng, H, D, max(N, M))
    align = str(rng.choice(["start", "end"]))
    return {
        **inputs,
        "parameters": weights,
        "num_heads": H,
        "align": align,
        "visible": mask(rng, B, H, N, M, float_too=False),
    }


def _alibi_layer(rng: Generator) -> dict[str, Any]:
    B, H, D, N = size(rng, 3), size(rng, 3), size(rng, 4), size(rng)
    inputs = {name: normal(rng, B, N, H * D) for name in ("query", "key", "value")}
    weights = _weights(rng, "query.linear key.linear value.linear output", H * D)
    return {
        **inputs,
        "parameters": weights,
        "num_heads": H,
        "visible": np.tri(N, dtype=bool) & (rng.random((N, N)) < 0.8),
    }


def _txl_weights(rng: Generator, H: int, D: int) -> dict[str, Any]:
    F = H * D
    norm = {"layer_norm.weight": normal(rng, F), "layer_norm.bias": normal(rng, F)}
    return (
        _weights(rng, "qkv_net r_net o_net", F)
        | norm
        | {"u": normal(rng, H, D), "v": normal(rng, H, D)}
    )


def _txl_layer(rng: Generator) -> dict[str, Any]:
    B, H, D, N, S = size(rng, 3), size(rng, 3), size(rng, 4), size(rng), int(rng.integers(0, 5))
    F = H * D
    inputs = {"x": normal(rng, B, N, F) + rng.choice([0.0, 5.0]), "position": normal(rng, N + S, F)}
    mem = normal(rng, B, S, F) if S else None
    return {
        **inputs,
        "parameters": _txl_weights(rng, H, D),
        "num_heads": H,
        "mem": mem,
        "visible": mask(rng, N, N + S, float_too=False),
    }


def _txl_stack(rng: Generator) -> dict[str, Any]:
    B, H, D, N, S, L = (
        size(rng, 3),
        size(rng, 3),
        2 * size(rng, 3),
        size(rng),
        int(rng.integers(0, 5)),
        size(rng, 3),
    )
    mems = [normal(rng, B, S, H * D) for _ in range(L)] if rng.random() < 0.7 else None
    weights = [_txl_weights(rng, H, D) for _ in range(L)]
    return {
        "x": normal(rng, B, N, H * D),
        "parameters": weights,
        "num_heads": H,
        "mems": mems,
        "mem_len": int(rng.integers(0, 7)),
    }


def _without_value(rng: Generator) -> dict[str, Any]:
    inputs = _heads(rng)[0]
    return {"query": inputs["query"], "key": inputs["key"]}


CASES = {
    "scaled_dot_product_score": _without_value,
    "additive_score": _additive_score,
    "softmax": _softmax,
    "dropout": _dropout,
    "additive_attention": _additive,
    "scaled_dot_product_attention": _scaled_dot,
    "sinusoidal_positions": lambda rng: {"M": int(rng.integers(1, 200)), "F": 2 * size(rng, 16)},
    "transformer_xl_score": _txl_score,
    "transformer_xl_attention": _txl,
    "learned_relative_score": _learned_score,
    "learned_relative_attention": _learned,
    "get_slopes": lambda rng: {
        "n_heads": int(rng.choice([rng.integers(1, 25), rng.integers(25, 300)]))
    },
    "get_alibi_biases": lambda rng: {
        "n_heads": int(rng.integers(1, 13)),
        "visible": rng.random((size(rng), size(rng))) < 0.8,
    },
    "alibi_attention": _alibi,
    "self_attention": _self_attention,
    "multi_head_attention": _multi_head,
    "multi_head_self_attention": lambda rng: _multi_head(rng, True),
    "relative_multi_head_attention": _relative_layer,
    "alibi_multi_head_attention": _alibi_layer,
    "transformer_xl_layer": _txl_layer,
    "transformer_xl": _txl_stack,
}
