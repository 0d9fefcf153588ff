"""
Our own Triton kernel of plain attention with causality in the kernel, for which PyTorch's signature
has no argument: what ALiBi and Transformer-XL are held against, like with like.

The mask that it is given has to be the causal one: it is not read, and a case of another mask is
answered wrongly, which the judge would say.
"""

from attnverify.torch_impl import PRECISION as OURS
from attnverify.torch_impl.triton.attention import attention

PRECISION, ARRAYS = OURS, "torch"


def scaled_dot_product_attention_causal(query, key, value, mask=None, keep=None, p=0.0):
    if mask is None or keep is not None:
        raise NotImplementedError("a causal mask alone")
    return attention(query, key, value, causal=True)
