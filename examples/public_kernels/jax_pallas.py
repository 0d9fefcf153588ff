"""
jax/experimental/pallas/ops/gpu/attention.py of jax-ml/jax (Apache-2.0), seen in 0.10.2: attention
in Pallas, forward and backward, in its own interpreter.

    git clone https://github.com/jax-ml/jax $PUBLIC_KERNELS/jax && pip install jax==0.10.2
    attnverify run examples/public_kernels/jax_pallas.py --profile quick --dtype float32

Adapted: keys and values are repeated for the heads that share them, and the blocks of the backward
pass divide the rows: by default they are of 32 rows, and of 34 rows it reads two blocks, NaN in
the interpreter. What it does not take is not supported: more than 128 rows that are no multiple of
that, another number of keys than of rows, segments of the rows other than those of the keys.
"""

import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from checkouts import load

ARRAYS = "jax"
DTYPES = ("float32", "float16", "bfloat16")
LAYOUT = "BNHD"
FEATURES = {"lse": False, "E != D": False, "N != M": False}

kernel = load("jax", "jax/experimental/pallas/ops/gpu/attention.py")
jnp = kernel.jnp


def grouped_attention(query, key, value, scale=None, causal=False, segments=None):
    if query.shape[1] > 128 and query.shape[1] % 128:
        raise NotImplementedError("multiples of 128")
    if segments is not None and not jnp.array_equal(*segments):
        raise NotImplementedError("rows and keys have the same segments")
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], 2) for x in (key, value))
    ids = None if segments is None else segments[0]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    blocks = kernel.BlockSizes(128, 128, *[math.gcd(query.shape[1], 32)] * 4)
    return kernel.mha(query, key, value, ids, scale, causal, blocks, interpret=True)
