import torch  # noqa: F401
from labml_nn.transformers import alibi


def get_alibi_biases(n_heads, visible):
    return alibi.get_alibi_biases(n_heads, visible).permute(2, 0, 1)
