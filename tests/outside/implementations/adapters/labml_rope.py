import torch  # noqa: F401
from labml_nn.transformers.rope import RotaryPositionalEmbeddings


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    if pairing != "halves" or frequencies is not None:
        raise NotImplementedError("labml turns halves, by its base")
    turn = RotaryPositionalEmbeddings(rotary_dim or x.shape[-1], base)
    return turn(x.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)
