"""A right call of every operation, and what each of its arguments may be wrongly."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves


def zeros(*shape: int) -> ndarray:
    return np.zeros(shape)


def shown(*shape: int) -> ndarray:
    return np.ones(shape, bool)


def counts(*shape: int) -> ndarray:
    return np.ones(shape, np.int64)


def squares(*names: str) -> dict[str, ndarray]:
    return {f"{name}.weight": zeros(6, 6) for name in names}


# every size of a right call is another prime (or 4, 6): what is wrong below is wrong for one reason
HEADS = {"query": zeros(2, 3, 5, 4), "key": zeros(2, 3, 7, 4), "value": zeros(2, 3, 7, 11)}
MODEL = {"query": zeros(2, 5, 6), "key": zeros(2, 7, 6), "value": zeros(2, 7, 6)}
ADDITIVE = {"query": zeros(2, 5, 4), "key": zeros(2, 7, 3), "value": zeros(2, 7, 11)} | {
    "w_query": zeros(6, 4),
    "w_key": zeros(6, 3),
    "w_score": zeros(6),
}
XL = HEADS | {"position": zeros(3, 7, 4), "u": zeros(3, 4), "v": zeros(3, 4)}
TABLES = {
    "key_pos_embeddings": zeros(16, 3, 4),
    "key_pos_bias": zeros(16, 3),
    "query_pos_bias": zeros(3, 4),
}
D_OUTPUT = {"d_output": zeros(2, 3, 5, 11)}
NET = squares("r_net", "o_net") | {
    "qkv_net.weight": zeros(18, 6),
    "layer_norm.weight": zeros(6),
    "u": zeros(3, 2),
    "v": zeros(3, 2),
}
LABML = squares("query.linear", "key.linear", "value.linear", "output")
RIGHT: dict[str, dict[str, Any]] = {
    "additive_score": {name: x for name, x in ADDITIVE.items() if name != "value"},
    "scaled_dot_product_score": {"query": zeros(2, 5, 4), "key": zeros(2, 7, 4)},
    "causal_mask": {"N": 2, "M": 3},
    "merge_masks": {"attn_mask": shown(6, 5, 7), "key_padding_mask": shown(2, 7), "num_heads": 3},
    "softmax": {"score": zeros(3, 5, 7), "mask": shown(5, 7)},
    "visible_keys": {
        "B": 2,
        "N": 5,
        "M": 7,
        "causal": True,
        "window": (2, None),
        "chunk": 3,
        "offset": counts(2),
        "lengths": counts(2),
        "query_lengths": counts(2),
        "segments": (counts(2, 5), counts(2, 7)),
        "blocks": counts(2, 7),
        "pinned": 1,
    },
    "grouped_attention": {
        "query": zeros(2, 6, 5, 4),
        "key": zeros(2, 3, 7, 4),
        "value": zeros(2, 3, 7, 11),
        "mask": shown(5, 7),
        "soft_cap": 1.5,
        "sink": zeros(6),
        "scale": 0.5,
        "keep": shown(5, 7),
        "p": 0.5,
    },
    "merge_attention": {"outputs": zeros(2, 3, 5, 7, 4), "lses": zeros(2, 3, 5, 7)},
    "latent_attention": {
        "query": zeros(2, 6, 5, 11),
        "query_rope": zeros(2, 6, 5, 4),
        "latent": zeros(2, 7, 11),
        "key_rope": zeros(2, 7, 4),
        "scale": 0.5,
        "soft_cap": 1.5,
        "sink": zeros(6),
    },
    "selected_attention": {
        "query": zeros(2, 6, 5, 4),
        "key": zeros(2, 3, 7, 4),
        "value": zeros(2, 3, 7, 11),
        "selection": np.broadcast_to(np.array([3, -1, 0, 2]), (2, 3, 5, 4)).copy(),
        "block": 2,
        "soft_cap": 1.5,
        "sink": zeros(6),
        "scale": 0.5,
    },
    "packed_attention": {
        "query": zeros(5, 6, 4),
        "key": zeros(7, 3, 4),
        "value": zeros(7, 3, 11),
        "query_starts": np.array([0, 2, 5]),
        "key_starts": np.array([0, 3, 7]),
        "soft_cap": 1.5,
        "sink": zeros(6),
        "scale": 0.5,
    },
    "paged_attention": {
        "query": zeros(5, 6, 4),
        "key_pages": zeros(8, 2, 3, 4),
        "value_pages": zeros(8, 2, 3, 11),
        "page_table": np.array([[7, 0, 3], [1, 5, 4]]),
        "lengths": np.array([6, 3]),
        "query_starts": np.array([0, 2, 5]),
        "soft_cap": 1.5,
        "sink": zeros(6),
        "scale": 0.5,
    },
    "dequantize": {
        "stored": np.zeros((2, 3, 5, 7), np.int8),
        "scale": zeros(2, 3, 5),
        "stored_as": "int8",
    },
    "rotary_embedding": {
        "x": zeros(2, 3, 5, 7),
        "positions": counts(2, 5),
        "pairing": "halves",
        "base": 8.0,
        "rotary_dim": 4,
        "frequencies": zeros(2),
    },
    "dropout": {"weights": zeros(3, 5, 7), "keep": shown(5, 7), "p": 0.5},
    "scaled_dot_product_attention": HEADS | {"mask": shown(5, 7), "keep": shown(5, 7), "p": 0.5},
    "scaled_dot_product_attention_grad": D_OUTPUT | HEADS,
    "additive_attention": ADDITIVE | {"mask": shown(2, 1, 7)},
    "additive_attention_grad": {"d_output": zeros(2, 5, 11)} | ADDITIVE,
    "shift_right": {"x": zeros(5, 7)},
    "rel_shift": {"x": zeros(5, 7)},
    "sinusoidal_positions": {"M": 3, "F": 4},
    "transformer_xl_score": {name: x for name, x in XL.items() if name != "value"},
    "transformer_xl_attention": XL | {"visible": shown(2, 1, 5, 7)},
    "transformer_xl_attention_grad": D_OUTPUT | XL,
    "learned_relative_score": {"query": zeros(2, 3, 5, 4), "key": zeros(2, 3, 7, 4)}
    | TABLES
    | {"align": "end"},
    "learned_relative_attention": HEADS | TABLES | {"align": "start", "visible": shown(5, 7)},
    "learned_relative_attention_grad": D_OUTPUT | HEADS | TABLES | {"align": "end"},
    "get_slopes": {"n_heads": 3},
    "get_alibi_biases": {"n_heads": 3, "visible": shown(5, 7)},
    "alibi_attention": HEADS | {"visible": shown(5, 7)},
    "alibi_attention_grad": D_OUTPUT | HEADS,
    "init_mems": {"n_layers": 1, "mem_len": 2, "batch": 1, "width": 1},
    "update_mems": {"hids": [zeros(2, 5, 6)], "mems": [zeros(2, 3, 6)], "mem_len": 2},
    "self_attention": {
        "x": zeros(2, 5, 6),
        "parameters": {"w_query": zeros(4, 6), "w_key": zeros(4, 6), "w_value": zeros(3, 6)},
    },
    "multi_head_attention": MODEL
    | {"parameters": squares("q_proj", "k_proj", "v_proj", "out_proj"), "num_heads": 3},
    "multi_head_self_attention": {
        "x": zeros(2, 5, 6),
        "parameters": squares("q_proj", "k_proj", "v_proj", "out_proj"),
        "num_heads": 3,
    },
    "relative_multi_head_attention": MODEL
    | {
        "parameters": LABML
        | TABLES
        | {"key_pos_embeddings": zeros(16, 3, 2), "query_pos_bias": zeros(3, 2)}
    }
    | {"num_heads": 3, "align": "end"},
    "alibi_multi_head_attention": {name: zeros(2, 5, 6) for name in MODEL}
    | {"parameters": LABML, "num_heads": 3, "visible": shown(5, 5)},
    "transformer_xl_layer": {
        "x": zeros(2, 5, 6),
        "position": zeros(8, 6),
        "parameters": NET,
        "num_heads": 3,
        "mem": zeros(2, 3, 6),
        "eps": 0.5,
    },
    "transformer_xl": {
        "x": zeros(2, 5, 6),
        "parameters": [NET, NET],
        "num_heads": 3,
        "mems": [zeros(2, 3, 6)] * 2,
        "mem_len": 4,
    },
}


def gradient_call(name: str, call: dict[str, Any]) -> dict[str, Any]:
    """The gradient of a right call, by all its outputs."""
    outputs = getattr(spec, name)(**call)
    arriving = map_leaves(np.zeros_like, outputs if isinstance(outputs, tuple) else (outputs,))
    arguments = CATALOGUE[f"{name}_grad"].arguments
    of_outputs = [argument for argument in arguments if argument.startswith("d_")]
    kept = {argument: x for argument, x in call.items() if argument in arguments}
    return dict(zip(of_outputs, arriving, strict=True)) | kept


RIGHT |= {
    f"{name}_grad": gradient_call(name, call)
    for name, call in RIGHT.items()
    if f"{name}_grad" in set(CATALOGUE) - set(RIGHT)
}

DROPPED = {"keep": shown(5, 7), "p": 0.5}
RIGHT |= {
    "update_mems alone": RIGHT["update_mems"] | {"mems": None},
    "merge_masks padding": RIGHT["merge_masks"] | {"attn_mask": None},
    "grouped_attention bare": {
        name: RIGHT["grouped_attention"][name] for name in ("query", "key", "value")
    },
    "packed_attention bare": {
        name: RIGHT["packed_attention"][name]
        for name in ("query", "key", "value", "query_starts", "key_starts")
    },
    "paged_attention bare": {
        name: RIGHT["paged_attention"][name]
        for name in ("query", "key_pages", "value_pages", "page_table", "lengths", "query_starts")
    },
    "rotary_embedding whole": {
        "x": zeros(2, 3, 5, 4),
        "positions": counts(2, 5),
        "pairing": "interleaved",
    },
    "self_attention dropped": RIGHT["self_attention"]
    | {"mask": shown(5, 5), "keep": shown(5, 5), "p": 0.5},
    "multi_head_attention masked": RIGHT["multi_head_attention"]
    | {"attn_mask": shown(5, 7), "key_padding_mask": shown(2, 7)}
    | DROPPED,
    "relative_multi_head_attention dropped": RIGHT["relative_multi_head_attention"]
    | {"visible": shown(5, 7)}
    | DROPPED,
    "alibi_multi_head_attention dropped": RIGHT["alibi_multi_head_attention"]
    | {"keep": shown(5, 5), "p": 0.5},
    "transformer_xl_layer dropped": RIGHT["transformer_xl_layer"]
    | {"visible": shown(5, 8), "keep": shown(5, 8), "p": 0.5},
    "transformer_xl dropped": RIGHT["transformer_xl"] | {"keep": shown(2, 2, 3, 5, 8), "p": 0.5},
}
"""Other calls of an operation, with options or without: its name, and a word."""


def wrong_values(right: Any) -> list[Any]:
    """What one argument may be wrongly: another type, kind, rank or size."""
    if isinstance(right, ndarray):
        longer = [
            np.concatenate([right, right.take([0], axis)], axis) for axis in range(right.ndim)
        ]
        other = right.astype(bool if right.dtype.kind == "f" else float)
        return [
            *longer,
            right[None],
            right[..., 0],
            right[:0],
            other,
            right.astype(int),
            right.tolist(),
            "x",
            *([right - 9, right + 9] if right.dtype.kind == "i" else []),
        ]
    if isinstance(right, dict):
        changed = [right | {name: zeros(9, 9)} for name in right] + [
            {n: x for n, x in right.items() if n != name} for name in right
        ]
        return [right | {"unknown": zeros(1)}, *changed, list(right)]
    if isinstance(right, tuple):
        return [3, right[:1], right * 2, (None, right[0]), ("x", "x"), (-1, -1)]
    if isinstance(right, list):
        return [
            right[:-1],
            right * 2,
            [None] * len(right),
            [[x] for x in right],
            *([x] for x in wrong_values(right[0])),
            3,
        ]
    return ["x", -1, 1.5, 5, None, True, np.nan, zeros(1), np.inf, 0]


WRONG = [
    (name, argument, number)
    for name, call in RIGHT.items()
    for argument, right in call.items()
    for number in range(len(wrong_values(right)))
]


def operation_of(name: str) -> str:
    return name.split()[0]


def wrong_call(name: str, argument: str, number: int) -> dict[str, Any]:
    """The right call with this argument wrong."""
    return RIGHT[name] | {argument: wrong_values(RIGHT[name][argument])[number]}
