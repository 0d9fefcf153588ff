"""
Layers: every backend against the specification, and the specification against what its clauses say.
"""

import numpy as np
import pytest

from attnverify.differential import *
from attnverify.spec import (
    alibi_attention,
    alibi_multi_head_attention,
    causal_mask,
    init_mems,
    learned_relative_attention,
    multi_head_attention,
    relative_multi_head_attention,
    scaled_dot_product_attention,
    self_attention,
    sinusoidal_positions,
    softmax,
    transformer_xl,
    transformer_xl_attention,
    transformer_xl_layer,
)
from attnverify.spec.projections import layer_norm
from tests.support.random_arrays import close, normals

CHAPTER = "layers"

B, H, N, M, D, E, K, P = 3, 2, 5, 7, 11, 13, 19, 17
F = H * D
Weights = dict[str, np.ndarray]


def projections(*names: str, seed: int = 0) -> Weights:
    """For each name a weight [F F] and a bias [F]."""
    drawn = normals(*[(F, F), (F,)] * len(names), seed=seed)
    keys = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    return {key: x / np.sqrt(F) if x.ndim == 2 else x for key, x in zip(keys, drawn, strict=True)}


def multi_head_weights() -> Weights:
    return projections("q_proj", "k_proj", "v_proj", "out_proj")


def labml_weights() -> Weights:
    return projections("query.linear", "key.linear", "value.linear", "output")


def relative_weights() -> Weights:
    embeddings, bias, query_bias = normals((2 * P, H, D), (2 * P, H), (H, D), seed=9)
    weights = {
        name: x
        for name, x in labml_weights().items()
        if name not in ("query.linear.bias", "key.linear.bias")
    }
    return weights | {
        "key_pos_embeddings": embeddings,
        "key_pos_bias": bias,
        "query_pos_bias": query_bias,
    }


def transformer_xl_weights(seed: int = 0) -> Weights:
    qkv, qkv_bias, scale, shift, u, v = normals(
        (3 * F, F), (3 * F,), (F,), (F,), (H, D), (H, D), seed=seed + 50
    )
    norm = {"layer_norm.weight": scale, "layer_norm.bias": shift}
    return (
        projections("r_net", "o_net", seed=seed)
        | norm
        | {"qkv_net.weight": qkv / np.sqrt(F), "qkv_net.bias": qkv_bias, "u": u, "v": v}
    )


def inputs(seed: int = 5) -> list[np.ndarray]:
    return normals((B, N, F), (B, M, F), (B, M, F), seed=seed)


def linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def heads(x: np.ndarray) -> np.ndarray:
    """[B N F] as [B H N D], one head after the other."""
    return np.stack([x[..., h * D : (h + 1) * D] for h in range(H)], axis=1)


def side_by_side(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:, h] for h in range(H)], axis=-1)


# self-attention


def test_self_attention_is_attention_of_one_head_between_three_projections():
    x, w_query, w_key, w_value = normals((B, N, F), (K, F), (K, F), (E, F))
    output = self_attention(
        x, {"w_query": w_query, "w_key": w_key, "w_value": w_value}, causal_mask(N, N)
    )
    query, key, value = ((x @ w.T)[:, None] for w in (w_query, w_key, w_value))
    assert close(output, scaled_dot_product_attention(query, key, value, causal_mask(N, N))[:, 0])


# multi-head attention


def test_multi_head_attention_is_an_attention_for_every_head():
    query, key, value = inputs()
    weights = multi_head_weights()
    output, attended = multi_head_attention(query, key, value, weights, H)
    q, k, v = (
        heads(linear(x, weights, name))
        for x, name in zip((query, key, value), ("q_proj", "k_proj", "v_proj"), strict=True)
    )
    assert close(attended, softmax(q @ k.swapaxes(-1, -2) / np.sqrt(D)))
    assert close(output, linear(side_by_side(attended @ v), weights, "out_proj"))


PADDING = np.arange(M) >= np.array([[5], [7], [3]])
MASKS = {
    "no mask": {},
    "bool": {"attn_mask": ~causal_mask(N, M)},
    "float": {"attn_mask": normals((N, M))[0]},
    "bool for every head": {"attn_mask": np.random.default_rng(1).random((B * H, N, M)) < 0.3},
    "float for every head": {"attn_mask": normals((B * H, N, M))[0]},
    "padding": {"key_padding_mask": PADDING},
    "bool, padding": {"attn_mask": ~causal_mask(N, M), "key_padding_mask": PADDING},
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_pytorch_agrees_where_no_row_is_empty(masks):
    import torch

    weights = {name: torch.from_numpy(x) for name, x in multi_head_weights().items()}
    layer = torch.nn.MultiheadAttention(F, H, batch_first=True, dtype=torch.float64)
    parts = {
        part: torch.cat([weights[f"{x}_proj.{part}"] for x in "qkv"]) for part in ("weight", "bias")
    }
    layer.load_state_dict(
        {f"in_proj_{part}": x for part, x in parts.items()}
        | {f"out_proj.{x}": weights[f"out_proj.{x}"] for x in parts}
    )
    given = {name: torch.from_numpy(mask) for name, mask in masks.items()}
    wanted = layer(*map(torch.from_numpy, inputs()), **given, average_attn_weights=False)
    found = multi_head_attention(*inputs(), multi_head_weights(), H, **masks)
    assert all(
        close(ours, theirs.detach().numpy()) for ours, theirs in zip(found, wanted, strict=True)
    )


def test_a_padded_key_is_absent_even_where_it_is_no_number():
    query, key, value = inputs()
    wanted = multi_head_attention(query, key[:, :5], value[:, :5], multi_head_weights(), H)
    key[:, 5:], value[:, 5:] = np.nan, np.nan
    output, weights = multi_head_attention(
        query, key, value, multi_head_weights(), H, None, np.arange(M) >= np.full((B, 1), 5)
    )
    assert (
        close(output, wanted[0])
        and close(weights[..., :5], wanted[1])
        and not weights[..., 5:].any()
    )


def test_the_two_masks_hide_what_either_hides():
    attn_mask, both = ~causal_mask(N, M), (~causal_mask(N, M))[None] | PADDING[:, None]
    merged = multi_head_attention(*inputs(), multi_head_weights(), H, attn_mask, PADDING)
    written_out = multi_head_attention(
        *inputs(), multi_head_weights(), H, np.repeat(both, H, axis=0)
    )
    assert all(np.array_equal(*pair) for pair in zip(merged, written_out, strict=True))


# the layers of labml


@pytest.mark.parametrize("align", ["end", "start"])
def test_relative_multi_head_attention_is_learned_relative_attention_between_projections(align):
    weights, visible = relative_weights(), np.random.default_rng(1).random((N, M)) < 0.7
    names = ("query.linear", "key.linear", "value.linear")
    q, k, v = (heads(linear(x, weights, name)) for x, name in zip(inputs(), names, strict=True))
    tables = [weights[name] for name in ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")]
    wanted = linear(
        side_by_side(learned_relative_attention(q, k, v, *tables, align, visible)),
        weights,
        "output",
    )
    assert close(relative_multi_head_attention(*inputs(), weights, H, align, visible), wanted)


def test_with_tables_of_zeros_relative_multi_head_attention_knows_no_positions():
    weights = {name: 0 * x if "_pos_" in name else x for name, x in relative_weights().items()}
    names = {
        "query.linear": "q_proj",
        "key.linear": "k_proj",
        "value.linear": "v_proj",
        "output": "out_proj",
    }
    plain = {
        names[name.rpartition(".")[0]] + "." + name.rpartition(".")[2]: x
        for name, x in weights.items()
        if "_pos_" not in name
    }
    assert close(
        relative_multi_head_attention(*inputs(), weights, H, "end"),
        multi_head_attention(*inputs(), plain, H)[0],
    )


def test_alibi_multi_head_attention_under_a_causal_mask_is_alibi_attention_between_projections():
    weights, x = labml_weights(), normals((B, N, F))[0]
    q, k, v = (
        heads(linear(x, weights, name)) for name in ("query.linear", "key.linear", "value.linear")
    )
    wanted = linear(side_by_side(alibi_attention(q, k, v)), weights, "output")
    assert close(alibi_multi_head_attention(x, x, x, weights, H, causal_mask(N, N)), wanted)


def test_alibi_multi_head_attention_is_for_as_many_queries_as_keys():
    with pytest.raises(
        ValueError, match=r"^key: wanted shape \[B N F\] with B=3 N=5 F=22, got \(3, 7, 22\)$"
    ):
        alibi_multi_head_attention(*inputs(), labml_weights(), H, causal_mask(N, M))


# Transformer-XL


def test_layer_norm_has_mean_zero_and_variance_one_and_pytorch_agrees():
    import torch

    x, weight, bias = normals((B, N, F), (F,), (F,))
    y = layer_norm(x, np.ones(F), None, 0.0)
    assert close(y.mean(axis=-1), np.zeros((B, N))) and close(y.var(axis=-1), np.ones((B, N)))
    wanted = torch.nn.functional.layer_norm(
        *map(torch.from_numpy, (x,)), (F,), *map(torch.from_numpy, (weight, bias)), 1e-3
    )
    assert close(layer_norm(x, weight, bias, 1e-3), wanted.numpy())


def test_layer_norm_sees_neither_shift_nor_scale():
    x, weight, bias = normals((B, N, F), (F,), (F,))
    assert close(layer_norm(3 * x + 7, weight, bias, 0.0), layer_norm(x, weight, bias, 0.0))


@pytest.mark.parametrize("S", [0, 1, 7])
def test_a_layer_of_transformer_xl_is_attention_to_memory_and_segment_then_residual_then_norm(S):
    w, (x, mem) = transformer_xl_weights(), normals((B, N, F), (B, S, F))
    position = sinusoidal_positions(S + N, F)
    q, k, v = (
        heads(part)
        for part in np.split(linear(np.concatenate([mem, x], axis=1), w, "qkv_net"), 3, axis=-1)
    )
    r = heads(linear(position, w, "r_net")[None])[0]
    attended = side_by_side(transformer_xl_attention(q[:, :, S:], k, v, r, w["u"], w["v"]))
    wanted = layer_norm(
        x + linear(attended, w, "o_net"), w["layer_norm.weight"], w["layer_norm.bias"], 1e-5
    )
    assert close(transformer_xl_layer(x, position, w, H, mem), wanted)


def test_without_attention_the_residual_is_left():
    x, weights = normals((B, N, F))[0], transformer_xl_weights()
    silent = weights | {"o_net.weight": np.zeros((F, F)), "o_net.bias": np.zeros(F)}
    wanted = layer_norm(x, weights["layer_norm.weight"], weights["layer_norm.bias"], 1e-5)
    assert close(transformer_xl_layer(x, sinusoidal_positions(N, F), silent, H), wanted)


def test_no_later_position_of_the_segment_is_seen():
    x, layers = normals((B, N, F))[0], [transformer_xl_weights(0), transformer_xl_weights(1)]
    before, _ = transformer_xl(x, layers, H, None, 0)
    x[:, 3:] = 7.0
    assert np.array_equal(transformer_xl(x, layers, H, None, 0)[0][:, :3], before[:, :3])


@pytest.mark.parametrize("cuts", [[], [2], [3], [1, 2, 3, 4], [1, 4]])
@pytest.mark.parametrize("mem_len", [5, 11])
def test_segment_by_segment_from_an_empty_memory_equals_one_long_segment(cuts, mem_len):
    x, layers = normals((B, N, F))[0], [transformer_xl_weights(seed) for seed in range(3)]
    mems, outputs = [x[:, :0]] * 3, []
    for segment in np.split(x, cuts, axis=1):
        output, mems = transformer_xl(segment, layers, H, mems, mem_len)
        outputs.append(output)
    assert close(
        np.concatenate(outputs, axis=1), transformer_xl(x, layers, H, None, 0)[0], within=1e-10
    )


def test_a_memory_that_is_too_short_forgets():
    x, layers = normals((B, N, F))[0], [transformer_xl_weights(0)]
    _, mems = transformer_xl(x[:, :3], layers, H, [x[:, :0]], mem_len=2)
    short, _ = transformer_xl(x[:, 3:], layers, H, mems, mem_len=2)
    assert not close(short, transformer_xl(x, layers, H, None, 0)[0][:, 3:], within=1e-3)


def test_zeros_of_the_first_memory_are_keys_like_any_other():
    x, layers = normals((B, N, F))[0], [transformer_xl_weights(0)]
    empty, _ = transformer_xl(x, layers, H, [x[:, :0]], mem_len=7)
    zeros, mems = transformer_xl(x, layers, H, init_mems(1, 7, B, F), mem_len=7)
    assert (
        not close(zeros, empty, within=1e-3)
        and not mems[0][:, :2].any()
        and np.array_equal(mems[0][:, 2:], x)
    )
