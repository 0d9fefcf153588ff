import torch  # noqa: F401
from labml_nn.transformers.mha import MultiHeadAttention


def scaled_dot_product_score(query, key):
    (*lead, N, D), M = query.shape, key.shape[-2]
    layer = MultiHeadAttention(1, D)
    q, k = (x.reshape(1, -1, *x.shape[-2:]).permute(2, 0, 1, 3) for x in (query, key))
    return (layer.get_scores(q, k) * layer.scale).permute(2, 3, 0, 1).reshape(*lead, N, M)
