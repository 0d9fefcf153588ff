"""
python/tutorials/06-fused-attention.py of triton-lang/triton (MIT), as of Triton 3.6: forward by
tensor descriptors, autotuned, and backward; seen in the copy of bearneck/triton_learn at e34036d,
``tutorials/06-fused-attention.py``, whose comments are translated.

    git clone https://github.com/bearneck/triton_learn $PUBLIC_KERNELS/triton_learn
    attnverify run examples/public_kernels/triton_tutorial.py --profile quick

Adapted: it knows lengths that are multiples of 128 and no others, so that with a causal mask zeros
are put behind the last query and key, which no query sees; without one, other lengths are not
supported. Its backward pass compares strides, of axes of length 1 too, and refuses a gradient that
is not contiguous: it is given copies.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).parent))
from checkouts import load

TARGET = "sm_80"  # which has no TMA
DTYPES = ("float16",)
WIDTHS = (32, 64, 128)  # 16 is allowed too, but no configuration compiles for it
FEATURES = {"N != M": False, "E != D": False, "dropout": False, "mask": "causal", "width": WIDTHS}
ARGUMENTS = {"causal": "causal mask"}
PRECISION = {
    "scaled_dot_product_attention_grad": {"*": {"preset": "fused", "prescale": "float16"}},
    "*": "fused",
}

tutorial = load("triton_learn", "tutorials/06-fused-attention.py")


def scaled_dot_product_attention(query, key, value, causal=False):
    N, D = query.shape[-2:]
    if not causal and N % 128:
        raise NotImplementedError("without a causal mask, lengths that are multiples of 128")
    query, key, value = (fresh(F.pad(x, (0, 0, 0, -N % 128))) for x in (query, key, value))
    output = tutorial.attention(query, key, value, causal, D**-0.5, False)
    if output.requires_grad:
        output.register_hook(fresh)
    return output[:, :, :N]


def fresh(x):
    return x.clone(memory_format=torch.contiguous_format)
