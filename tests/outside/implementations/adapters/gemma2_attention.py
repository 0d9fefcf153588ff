from types import SimpleNamespace

import torch  # noqa: F401
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

FEATURES = {"lse": False}


def grouped_attention(query, key, value, soft_cap=None, scale=None):
    groups = query.shape[1] // key.shape[1]
    layer = SimpleNamespace(num_key_value_groups=groups, head_dim=query.shape[-1], training=False)
    options = {"scaling": scale, "softcap": soft_cap}
    return eager_attention_forward(layer, query, key, value, None, **options)[0].transpose(1, 2)
