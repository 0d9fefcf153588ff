"""
transformers as a backend: the Transformer-XL attention of XLNet, ALiBi as in BLOOM and MPT.

    attnverify run --backend examples/transformers_backend.py

XLNet puts the sequence first and the heads third ([N B H D]), its masks are numbers with
1 = hidden, and its table of positions starts one distance further out than ours: that row is filled
with zeros, which no visible key reads.
"""

from types import SimpleNamespace

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import pad
from transformers import BloomConfig, DynamicCache, MptConfig, XLNetConfig, XLNetModel
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor
from transformers.models.xlnet.modeling_xlnet import XLNetFeedForward, XLNetRelativeAttention

# A CPU that multiplies bfloat16 in hardware flushes subnormals, of its products and sums too.
FTZ = {"storage": "bfloat16_ftz", "acc": "float32_ftz"}
# BLOOM and MPT take the softmax in float32, whatever the dtype, and add slope * j; BLOOM keeps that
# bias in the dtype, and so the gradients of its scaled product (baddbmm with alpha) before their
# scale.
IN_FLOAT32 = {"score": "float32", "softmax": "float32", "prob": "float32", "bias": "float32"}
ALIBI = {"float64": IN_FLOAT32, "float32": {}, "float16": {}, "bfloat16": FTZ}
ALIBI = {dtype: {"bias_form": "absolute", **fields} for dtype, fields in ALIBI.items()}
NARROW = {
    dtype: {**ALIBI[dtype], "bias": dtype, "grad_partial": dtype}
    for dtype in ("float16", "bfloat16")
}
PRECISION = {
    "*": "eager",
    "bfloat16": FTZ,
    "alibi_attention_mpt": ALIBI,
    "alibi_attention_bloom": ALIBI | NARROW,
}


def rel_shift(x):
    padded = pad(x, (1, 0)).reshape(1, -1, x.shape[-2], x.shape[-1] + 1)
    return XLNetRelativeAttention.rel_shift_bnij(padded, klen=x.shape[-1]).reshape(x.shape)


def sinusoidal_positions(M, F):
    model = SimpleNamespace(d_model=F, attn_type="uni", bi_data=False, clamp_len=-1)
    model.positional_embedding = XLNetModel.positional_embedding
    return XLNetModel.relative_positional_encoding(model, qlen=M, klen=M - 1)[:, 0]


def transformer_xl_attention(query, key, value, position, u, v, visible=None):
    _, H, N, D = query.shape
    layer = xlnet(H, D)
    del layer.r_w_bias, layer.r_r_bias
    layer.r_w_bias, layer.r_r_bias = u, v
    q, k, w = (x.permute(2, 0, 1, 3) for x in (query, key, value))
    r = one_further(position.transpose(0, 1))[:, None].expand(-1, len(query), -1, -1)
    mask = hidden(N, key.shape[2], visible, query).permute(2, 3, 0, 1)
    return layer.rel_attn_core(q, k, w, r, attn_mask=mask).permute(1, 2, 0, 3)


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    if any(name.endswith("_net.bias") for name in parameters):
        raise NotImplementedError("the projections of XLNet have no bias")
    (_, N, F), M = x.shape, len(position)
    mask = hidden(N, M, visible, x).permute(2, 3, 0, 1)
    r = one_further(position)[:, None].expand(-1, len(x), -1)
    # XLNetModel.cache_mem has detached what it hands to the layers
    mems = None if mem is None else mem.detach().transpose(0, 1)
    inputs = (x.transpose(0, 1), None, mask, None, r, None, mems)
    layer = xlnet(num_heads, F // num_heads, eps)
    state = dict.fromkeys(
        dict(layer.named_parameters()), x.new_zeros(())
    )  # seg_embed and r_s_bias are not read
    names = xlnet_names(parameters, num_heads)
    normed = functional_call(layer, state | names, inputs)[0].transpose(0, 1)
    return feed_forward(normed, parameters, eps) if "ff_in.weight" in parameters else normed


def feed_forward(x, parameters, eps):
    """XLNet's, with the ReLU among the activations that it may have."""
    config = {"ff_activation": "relu", "layer_norm_eps": eps, "dropout": 0.0}
    with torch.device("meta"):
        layer = XLNetFeedForward(
            XLNetConfig(
                d_model=x.shape[-1], n_head=1, d_inner=len(parameters["ff_in.weight"]), **config
            )
        )
    state = {}
    for theirs, ours in (("layer_1", "ff_in"), ("layer_2", "ff_out"), ("layer_norm", "ff_norm")):
        weight = state[f"{theirs}.weight"] = parameters[f"{ours}.weight"]
        state[f"{theirs}.bias"] = parameters.get(f"{ours}.bias", weight.new_zeros(len(weight)))
    return functional_call(layer, state, (x,))


def update_mems(hids, mems, mem_len):
    model = SimpleNamespace(mem_len=mem_len, reuse_len=None)
    olds = [None] * len(hids) if mems is None else [mem.transpose(0, 1) for mem in mems]
    pairs = zip(hids, olds, strict=True)
    return [
        XLNetModel.cache_mem(model, hid.transpose(0, 1), old).transpose(0, 1) for hid, old in pairs
    ]


def get_slopes_bloom(n_heads):
    return build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)[:, 0, 1]


def get_slopes_mpt(n_heads):
    return -build_mpt_alibi_tensor(n_heads, 2)[:, 0, 0]


def alibi_attention_bloom(query, key, value, visible=None):
    """
    BLOOM's layer with its linear maps taken out; it keeps query, key and value of a head side by
    side.
    """
    (N, M, E), (B, H, _, D) = limits(query, key, value), query.shape
    layer = BloomAttention(BloomConfig(hidden_size=H * D, n_head=H), layer_idx=0)
    layer.query_key_value = layer.dense = nn.Identity()
    new, past = of_one_input(query, key, value)
    fused = torch.stack(new, -2).transpose(1, 2).flatten(2)
    alibi = build_alibi_tensor(torch.ones(B, M, device=query.device), H, query.dtype)
    mask = hidden(N, M, visible, query) * torch.finfo(query.dtype).min
    residual = torch.zeros_like(fused[..., : H * D])
    output, _ = layer(fused, residual, alibi, mask, layer_past=past)
    return output.unflatten(-1, (H, D)).transpose(1, 2)[..., :E]


def alibi_attention_mpt(query, key, value, visible=None):
    """MPT's layer with its linear maps taken out."""
    (N, M, E), (_, H, _, D) = limits(query, key, value), query.shape
    layer = MptAttention(MptConfig(d_model=H * D, n_heads=H), layer_idx=0)
    layer.Wqkv = layer.out_proj = nn.Identity()
    new, past = of_one_input(query, key, value)
    fused = torch.cat([x.transpose(1, 2).flatten(2) for x in new], -1)
    alibi = build_mpt_alibi_tensor(H, M, device=query.device)
    mask = hidden(N, M, visible, query).bool()
    output, _ = layer(fused, alibi, past_key_values=past, attention_mask=mask)
    return output.unflatten(-1, (H, D)).transpose(1, 2)[..., :E]


def limits(query, key, value):
    """N, M and E, where the layer can take them."""
    N, (M, D), E = query.shape[-2], key.shape[-2:], value.shape[-1]
    if N > M or E > D:
        raise NotImplementedError(
            "the layer takes query, key and value from one input: N > M and E > D do not fit"
        )
    return N, M, E


def of_one_input(query, key, value):
    """
    The last N keys and values beside the queries, values as wide as keys; what came before them is
    the layer's cache, None where nothing did.
    """
    before, value = key.shape[2] - query.shape[2], pad(value, (0, key.shape[3] - value.shape[3]))
    new = (query, key[:, :, before:], value[:, :, before:])
    if not before:
        return new, None
    past = DynamicCache()
    past.update(key[:, :, :before], value[:, :, :before], layer_idx=0)
    return new, past


def xlnet(H, D, eps=1e-5):
    with torch.device("meta"):
        return XLNetRelativeAttention(
            XLNetConfig(d_model=H * D, n_head=H, layer_norm_eps=eps, dropout=0.0)
        )


def xlnet_names(parameters, H):
    """[out in] matrices to [in H D], and u and v by the names that XLNet gives them."""
    q, k, v = parameters["qkv_net.weight"].mT.unflatten(-1, (3, H, -1)).unbind(1)
    r, o = (
        parameters["r_net.weight"].mT.unflatten(-1, (H, -1)),
        parameters["o_net.weight"].unflatten(-1, (H, -1)),
    )
    weight = parameters["layer_norm.weight"]
    norm = {
        "layer_norm.weight": weight,
        "layer_norm.bias": parameters.get("layer_norm.bias", torch.zeros_like(weight)),
    }
    return {
        "q": q,
        "k": k,
        "v": v,
        "r": r,
        "o": o,
        "r_w_bias": parameters["u"],
        "r_r_bias": parameters["v"],
    } | norm


def one_further(position):
    return torch.cat([torch.zeros_like(position[:1]), position])


def hidden(N, M, visible, like):
    """1 where the causal mask or `visible` hides, with four axes."""
    seen = torch.ones(1, 1, N, M, dtype=torch.bool, device=like.device).tril(M - N)
    return (~(seen if visible is None else seen & visible)).to(like.dtype)
