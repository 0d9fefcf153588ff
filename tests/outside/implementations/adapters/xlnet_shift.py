from torch.nn.functional import pad
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention


def rel_shift(x):
    padded = pad(x, (1, 0)).reshape(1, -1, x.shape[-2], x.shape[-1] + 1)
    return XLNetRelativeAttention.rel_shift_bnij(padded, klen=x.shape[-1]).reshape(x.shape)
