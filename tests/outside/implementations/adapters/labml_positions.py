import torch  # noqa: F401
from labml_nn.transformers.positional_encoding import get_positional_encoding


def sinusoidal_positions(M, F):
    return get_positional_encoding(F, M)[:, 0]
