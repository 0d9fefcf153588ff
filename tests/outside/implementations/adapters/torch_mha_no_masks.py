import torch
from torch.nn import functional

PRECISION = {"float32": {"prescale": "float32"}}


def multi_head_attention(query, key, value, parameters, num_heads):
    weights = torch.cat([parameters[f"{name}_proj.weight"] for name in "qkv"])
    none = query.new_zeros(query.shape[-1])
    biases = torch.cat([parameters.get(f"{name}_proj.bias", none) for name in "qkv"])
    last = parameters["out_proj.weight"], parameters.get("out_proj.bias")
    inputs = [x.transpose(0, 1) for x in (query, key, value)]
    common = (query.shape[-1], num_heads, weights, biases, None, None, False, 0.0, *last)
    output, shown = functional.multi_head_attention_forward(
        *inputs, *common, average_attn_weights=False
    )
    return output.transpose(0, 1), shown
