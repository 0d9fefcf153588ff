"""Memory: what Transformer-XL keeps of the segments before this one, one array a layer."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.layers import (
    check_init_mems,
    check_memory_gradients,
    check_update_mems,
)

from .arrays import ARRAYS
from .domains import MemoryLength

__all__ = ["init_mems", "update_mems", "update_mems_grad"]

Mems = list[Float[ndarray, "B S F"]] | None


def init_mems(n_layers: int, mem_len: MemoryLength, batch: int, width: int) -> Mems:
    """
    The memory before the first segment: zeros, one array [B S F] a layer.

    1. A memory of length 0 is no memory: None.
    2. The arrays are distinct: writing to one changes no other.

    >>> [x.shape for x in init_mems(n_layers=2, mem_len=3, batch=1, width=4)]
    [(1, 3, 4), (1, 3, 4)]
    >>> init_mems(n_layers=2, mem_len=0, batch=1, width=4) is None
    True

    Source: ``tf/train_gpu.py`` of kimiyoung/transformer-xl and ``init_mems`` of transformers'
    TransfoXL (seed 003), there with the sequence in front. The authors' ``mem_transformer.py``
    begins with empty arrays.
    """
    check_init_mems(ARRAYS, n_layers, mem_len, batch, width)
    return [np.zeros((batch, mem_len, width)) for _ in range(n_layers)] if mem_len > 0 else None


def update_mems(hids: Sequence[Float[ndarray, "B N F"]], mems: Mems, mem_len: MemoryLength) -> Mems:
    r"""
    The memory for the next segment: the last ``mem_len`` positions of the old memory followed by
    this segment.

    .. math:: \text{mems}'_l = [\text{mems}_l ; \text{hids}_l]_{\max(0,\, S + N - \text{mem\_len})
              \,:\, S + N}

    1. One rule for every relation of the lengths: a segment longer than the memory fills it alone,
       a shorter one pushes out the oldest, and a memory that is not full yet grows. The result has
       S' = min(mem_len, S + N) positions.
    2. ``mem_len`` = 0 keeps nothing: arrays [B 0 F]. (``x[-0:]`` would keep everything.)
    3. No memory stays no memory: None gives None.
    4. The result is cut off from the gradient, and never an alias of its inputs; the inputs are
       unchanged, the list ``mems`` too.

    >>> old, new = np.array([[[1.0], [2.0]]]), np.array([[[3.0]]])
    >>> update_mems([new], [old], mem_len=2)[0].ravel().tolist()
    [2.0, 3.0]
    >>> update_mems([new], [old], mem_len=9)[0].ravel().tolist()
    [1.0, 2.0, 3.0]
    >>> update_mems([new], [old], mem_len=0)[0].shape
    (1, 0, 1)

    Source: Dai et al. 2019, section 3.2; ``_update_mems`` of kimiyoung/transformer-xl (seed 003).

    Errata: a tutorial for TensorFlow 2 (seed 003) calls ``tf.stop_gradient(cat)`` and drops the
    result, so that the gradient flows on (the authors' ``_cache_mem`` returns it); it assigns to
    ``mems[i]`` and so changes its caller's list (seen where the dtypes differ). Its text says that
    the first segment has nothing to concatenate; its ``init_mems`` gives zeros, which are keys and
    take weight.
    """
    check_update_mems(ARRAYS, hids, mems, mem_len)
    if mems is None:
        return None
    both = [np.concatenate([mem, hid], axis=1) for mem, hid in zip(mems, hids, strict=True)]
    return [x[:, max(0, x.shape[1] - mem_len) :].copy() for x in both]


def update_mems_grad(
    d_new_mems: Mems, hids: Sequence[Float[ndarray, "B N F"]], mems: Mems, mem_len: MemoryLength
) -> tuple[list[ndarray], ...]:
    r"""
    The gradients of :func:`update_mems` by the hidden states and by the memory: zeros.

    .. math:: \overline{\text{hids}}_l = 0, \qquad \overline{\text{mems}}_l = 0

    1. Whatever arrives at the new memory goes nowhere: it is a constant of the next segment.
    2. Without a memory there is no gradient by one.

    >>> old, new = np.ones((1, 2, 1)), np.ones((1, 1, 1))
    >>> d_hids, d_mems = update_mems_grad([np.ones((1, 2, 1))], [new], [old], mem_len=2)
    >>> d_hids[0].ravel().tolist(), d_mems[0].ravel().tolist()
    ([0.0], [0.0, 0.0])

    Source: Dai et al. 2019, section 3.2: SG, the stop-gradient.
    """
    check_memory_gradients(ARRAYS, d_new_mems, update_mems(hids, mems, mem_len))
    d_hids = [np.zeros_like(hid) for hid in hids]
    return (d_hids,) if mems is None else (d_hids, [np.zeros_like(mem) for mem in mems])
