"""Answers on their way from the process that gave them: trees of arrays as plain data, and back."""

from base64 import b64decode, b64encode
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import dtype_name
from attnverify.catalogue.dtypes import numpy_dtype


def pack(tree: Any) -> Any:
    """Write a tree of arrays as plain data: ``{"array": "AAAA", "dtype": "float32", ...}``"""
    if isinstance(tree, dict):
        return {"mapping": {name: pack(branch) for name, branch in tree.items()}}
    if isinstance(tree, (list, tuple)):
        return [pack(branch) for branch in tree]
    if not isinstance(tree, ndarray):
        return None
    packed = b64encode(np.ascontiguousarray(tree).tobytes()).decode()
    return {"array": packed, "dtype": dtype_name(tree), "shape": list(tree.shape)}


def unpack(plain: Any) -> Any:
    """Rebuild the tree; nothing in the data is executed. Raises ValueError where it is none."""
    if isinstance(plain, list):
        return [unpack(branch) for branch in plain]
    if plain is None or "mapping" in plain:
        return plain and {name: unpack(branch) for name, branch in plain["mapping"].items()}
    numbers = np.frombuffer(b64decode(plain["array"]), numpy_dtype(plain["dtype"]))
    return numbers.reshape(plain["shape"])
