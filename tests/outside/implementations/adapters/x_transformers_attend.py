import torch  # noqa: F401
from x_transformers.attend import Attend


def scaled_dot_product_attention(query, key, value, mask=None):
    if mask is not None and mask.is_floating_point():
        raise NotImplementedError("its masks are boolean")
    mask = mask[None, None] if mask is not None and mask.ndim == 2 else mask
    return Attend()(query, key, value, mask=mask)[0]
