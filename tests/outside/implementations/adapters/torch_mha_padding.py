import torch
from torch.nn import functional

PRECISION = {"float32": {"prescale": "float32"}}


def multi_head_self_attention(x, parameters, num_heads, key_padding_mask=None):
    weights = torch.cat([parameters[f"{name}_proj.weight"] for name in "qkv"])
    none = x.new_zeros(x.shape[-1])
    biases = torch.cat([parameters.get(f"{name}_proj.bias", none) for name in "qkv"])
    last = parameters["out_proj.weight"], parameters.get("out_proj.bias")
    tokens = None if key_padding_mask is None else ~key_padding_mask  # True: a token
    common = (x.shape[-1], num_heads, weights, biases, None, None, False, 0.0, *last)
    options = {"key_padding_mask": tokens, "average_attn_weights": False}
    inputs = [x.transpose(0, 1)] * 3
    output, shown = functional.multi_head_attention_forward(*inputs, *common, **options)
    return output.transpose(0, 1), shown
