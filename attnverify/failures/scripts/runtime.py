"""
The body of a stand-alone script: call the backend once more on the inputs of a failure and show
what is out of bound.

A generated script consists of attnverify/inputs/memory_layouts.py, attnverify/judge/comparison.py,
attnverify/failures/scripts/loading.py, this file and one call of :func:`show_again` with the
recorded arrays. It needs NumPy and the backend's own library: nothing else of ours may be imported
here.
"""

import base64
import importlib
import inspect
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf, nan  # noqa: F401 - the arrays below are written with them
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.failures.scripts.loading import FromNumpy, cannot_run, conversion, load, modules
from attnverify.inputs.memory_layouts import arrange, shares_memory
from attnverify.judge.comparison import compare


def array(dtype: str, shape: tuple[int, ...], packed_bytes: str) -> ndarray:
    return np.frombuffer(zlib.decompress(base64.b85decode(packed_bytes)), dtype).reshape(shape)


def show_again(
    source: str,
    chapter: str,
    name: str,
    forward: str,
    library: str,
    dtype: str,
    layout: dict[str, str],
    inputs: Any,
    expected: Any,
    bound: Any,
    exchanged: list[str],
    places: list[str],
    takes_dtype: bool,
    wide: list[int],
) -> None:
    """
    Print what the implementation gives now against what the specification says, and note in SHOWN
    whether it differs; "ValueError" says that the specification refuses the call. Inputs that are
    float32 here, and the outputs with the numbers ``wide``, are float32 whatever the dtype.
    """
    root = LOADED[source] if source in LOADED else LOADED.setdefault(source, load(source))
    found = [m for m in modules(root, chapter) if hasattr(m, name) or hasattr(m, forward)]
    if not found:
        cannot_run(f"{source} has no function {name}")
    module = found[0]
    from_numpy: FromNumpy = getattr(root, "from_numpy", None) or conversion(library)
    given = {key: to_layout(x, layout[key], from_numpy, dtype) for key, x in inputs.items()}
    before = repr(to_numpy(root, given))
    freed = [from_numpy(np.full(x.shape, np.nan), dtype) for x in float_arrays(expected)]
    del freed  # poison for what is never written
    with np.errstate(all="ignore"):
        try:
            also = {"dtype": from_numpy(np.zeros(1), dtype).dtype} if takes_dtype else {}
            output = run(module, name, forward, given | also, exchanged, places)
        except NotImplementedError as error:
            cannot_run(f"not supported: {error}")
        except Exception as error:
            SHOWN.append(not (isinstance(expected, str) and isinstance(error, ValueError)))
            print(
                f"raised {type(error).__name__}: {error}"
                + ("; wanted ValueError" if isinstance(expected, str) else "")
            )
            return
        if isinstance(expected, str):
            SHOWN.append(True)
            print(f"accepted {', '.join(inputs)}; wanted ValueError")
            return
        if repr(to_numpy(root, given)) != before:
            SHOWN.append(True)
            print("inputs: changed in place")
        if any(shares_memory(x, y) for x in arrays(output) for y in arrays(given)):
            SHOWN.append(True)
            print("output: shares memory with an input")
        show(root, output, expected, bound, [dtype, "float32"], wide)


SHOWN: list[bool] = []
"""What was shown: True for a failure."""


LOADED: dict[str, ModuleType] = {}
"""Several calls in one script are made to one module: what it remembers shows."""


def arrays(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple, dict)):
        return [
            leaf
            for branch in (tree.values() if isinstance(tree, dict) else tree)
            for leaf in arrays(branch)
        ]
    return [tree] if hasattr(tree, "shape") else []


def to_layout(x: Any, kind: str, from_numpy: FromNumpy, dtype: str) -> Any:
    if isinstance(x, dict):
        return {name: to_layout(leaf, kind, from_numpy, dtype) for name, leaf in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(to_layout(leaf, kind, from_numpy, dtype) for leaf in x)
    if not isinstance(x, ndarray):
        return x
    return arrange(from_numpy, x.copy(), "float32" if x.dtype == np.float32 else dtype, kind)


def float_arrays(tree: Any) -> list[ndarray]:
    """Collect the float arrays of what the specification expects."""
    if isinstance(tree, (list, tuple)):
        return [leaf for branch in tree for leaf in float_arrays(branch)]
    return [tree] if isinstance(tree, ndarray) and tree.dtype.kind == "f" else []


def to_numpy(root: ModuleType, x: Any) -> Any:
    if isinstance(x, dict):
        return {name: to_numpy(root, leaf) for name, leaf in x.items()}
    if isinstance(x, (list, tuple)):
        return [to_numpy(root, leaf) for leaf in x]
    if not hasattr(x, "shape"):
        return x
    if hasattr(root, "to_numpy"):
        return np.array(root.to_numpy(x))
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        return np.array((x.double() if x.is_floating_point() else x).numpy())
    x = np.array(x.get() if hasattr(x, "get") else x)
    return x if x.dtype.kind in "biu" else x.astype(np.float64)


def run(
    module: ModuleType,
    name: str,
    forward: str,
    given: dict[str, Any],
    exchanged: list[str],
    places: list[str],
) -> Any:
    if hasattr(module, name):
        return call(getattr(module, name), given, exchanged, places)
    torch = importlib.import_module("torch")
    arriving = list(tensors([x for key, x in given.items() if key.startswith("d_")]))
    inputs = {key: requiring(x) for key, x in given.items() if not key.startswith("d_")}
    outputs = list(tensors(call(getattr(module, forward), inputs, exchanged, places)))
    pairs = [(y, d) for y, d in zip(outputs, arriving, strict=False) if y.requires_grad]
    wanted = [x for x in tensors(inputs) if x.requires_grad]
    heads = [list(part) for part in zip(*pairs, strict=True)]
    nothing = [None for _ in wanted]
    found = torch.autograd.grad(heads[0], wanted, heads[1], allow_unused=True) if heads else nothing
    grads = {
        id(x): torch.zeros_like(x) if d is None else d for x, d in zip(wanted, found, strict=True)
    }
    return tuple(d for x in inputs.values() if (d := gradients_of(x, grads)) is not None)


def tensors(tree: Any) -> Iterator[Any]:
    """Yield every tensor of a tree of lists and mappings."""
    if isinstance(tree, (dict, list, tuple)):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(branch)
    elif hasattr(tree, "requires_grad"):
        yield tree


def requiring(tree: Any) -> Any:
    """Copy the same tree with float tensors that require a gradient."""
    if isinstance(tree, dict):
        return {key: requiring(branch) for key, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [requiring(branch) for branch in tree]
    is_float = hasattr(tree, "is_floating_point") and tree.is_floating_point()
    return tree.detach().requires_grad_() if is_float else tree


def gradients_of(tree: Any, grads: dict[int, Any]) -> Any:
    """Collect the gradients by a tree of tensors, without what has none."""
    if isinstance(tree, dict):
        found = {key: gradients_of(branch, grads) for key, branch in tree.items()}
        return {key: branch for key, branch in found.items() if branch is not None}
    if isinstance(tree, (list, tuple)):
        return [
            d for d in (gradients_of(branch, grads) for branch in tree) if d is not None
        ] or None
    return grads.get(id(tree))


def call(
    function: Callable[..., Any], given: dict[str, Any], exchanged: list[str], places: list[str]
) -> Any:
    """
    Call by name, and what has a place alone by its place; what is exchanged has heads behind
    positions.
    """
    named = {name: swapped(x) if name in exchanged else x for name, x in given.items()}
    first = [named.pop(name) for name in places if name in named]
    with suppress(ValueError):  # a builtin does not say what it takes
        signature = inspect.signature(function)
        try:
            signature.bind(*first, **named)
        except TypeError as error:
            cannot_run(f"{function.__name__} takes other arguments: {error}")
    output = function(*first, **named)
    return swapped(output) if "return" in exchanged else output


def swapped(x: Any) -> Any:
    """Return an array of heads and positions with these exchanged; each of several."""
    if isinstance(x, (list, tuple)):
        return type(x)(swapped(each) for each in x)
    if len(x.shape) < 4:
        return x
    other = x.swapaxes(-3, -2)
    if hasattr(x, "is_contiguous"):
        return other.contiguous() if x.is_contiguous() else other
    return other.copy() if getattr(getattr(x, "flags", None), "c_contiguous", False) else other


def show(
    root: ModuleType,
    actual: Any,
    expected: Any,
    limit: Any,
    dtypes: list[str],
    wide: list[int],
    path: str = "output",
) -> None:
    if isinstance(expected, (dict, list, tuple)):
        for i, part in expected.items() if isinstance(expected, dict) else enumerate(expected):
            own = None if limit is None else limit[i]
            kinds = dtypes[::-1] if path == "output" and i in wide else dtypes
            show(root, actual[i], part, own, kinds, wide, f"{path}[{i!r}]")
        return
    dtype = dtypes[0]
    came = str(getattr(actual, "dtype", type(actual).__name__)).rpartition(".")[2]
    wanted = "NoneType" if expected is None else "bool" if expected.dtype == bool else dtype
    shape = tuple(getattr(actual, "shape", ()))
    if came != wanted or (expected is not None and shape != expected.shape):
        SHOWN.append(True)
        size = () if expected is None else expected.shape
        print(f"{path}: wanted {wanted} {size}, got {came} {shape}")
    elif expected is not None:
        show_elements(to_numpy(root, actual), expected, limit, path)


def show_elements(actual: ndarray, expected: ndarray, bound: ndarray | None, path: str) -> None:
    """Print how many elements are out of bound, and the first of them."""
    wide = actual if expected.dtype == bool else actual.astype(np.float64)
    wrong = ~compare(wide, expected, bound).arrays[3]
    limits = np.zeros(expected.shape) if bound is None else bound
    SHOWN.append(bool(wrong.any()))
    print(f"{path}: {np.count_nonzero(wrong)} of {wrong.size} elements out of bound")
    for index in map(tuple, np.argwhere(wrong)[:5].tolist()):
        print(
            f"  {index}: got {actual[index].item()!r}, expected {expected[index].item()!r}, bound "
            f"{limits[index].item()!r}"
        )
