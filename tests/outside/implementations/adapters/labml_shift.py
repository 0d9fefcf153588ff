import torch  # noqa: F401
from labml_nn.transformers.xl import relative_mha


def shift_right(x):
    return relative_mha.shift_right(x.movedim((-2, -1), (0, 1))).movedim((0, 1), (-2, -1))
