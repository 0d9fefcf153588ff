from types import SimpleNamespace

import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

FEATURES = {"lse": False}


def grouped_attention(query, key, value, sink=None, scale=None):
    H, D = query.shape[1], query.shape[-1]
    sinks = torch.full((H,), -torch.inf) if sink is None else sink
    groups = H // key.shape[1]
    layer = SimpleNamespace(num_key_value_groups=groups, sinks=sinks, training=False)
    scale = D**-0.5 if scale is None else scale
    return eager_attention_forward(layer, query, key, value, None, scale)[0].transpose(1, 2)
