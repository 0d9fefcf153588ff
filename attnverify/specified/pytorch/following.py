"""
Following a PyTorch function: it runs on tensors that stand for traced arrays, and each operation
of ATen that it calls leaves what its NumPy form leaves. The lines that are told are those of the
user's file. What PyTorch computes of masks, indices and numbers alone, it computes itself.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch._decomp import core_aten_decompositions
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from attnverify.derived.tracing.array import Condition, Traced, node_of, numbers, numbers_of
from attnverify.derived.tracing.node import Node, NotUnderstood, constant, hide_frames, refuse
from attnverify.specified.pytorch.aten import ATEN

for file in (torch.__file__, __file__):
    hide_frames(Path(file).parent)

DECOMPOSITIONS = core_aten_decompositions()
FACTORIES: tuple[str, ...] = ("zeros", "ones", "full", "empty", "eye", "scalar_tensor")
FACTORIES += ("zeros_like", "ones_like", "full_like", "empty_like")
FACTORIES += ("new_zeros", "new_ones", "new_full", "new_empty")


class Followed(torch.Tensor):
    """A tensor without numbers: its shape and dtype are PyTorch's, its content is followed."""

    followed: Any

    @staticmethod
    def __new__(cls, like: torch.Tensor, content: Any) -> "Followed":
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )
        made.followed = content
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"a followed tensor of {tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return follow(func, args, kwargs or {})


class Following(TorchDispatchMode):
    """While it is on, tensors that the function makes can be written into as well."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(x, Followed) for x in tree_flatten((args, kwargs))[0]):
            return follow(func, args, kwargs)
        return made(func, args, kwargs)


def made(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do what PyTorch does of itself; a new array of floats can be written into."""
    new, name = func(*args, **kwargs), func.overloadpacket.__name__
    if not isinstance(new, torch.Tensor) or not new.dtype.is_floating_point:
        return new
    if name in FACTORIES:
        return Followed(new, Traced(constant(new.double().numpy())))
    STEPS[new] = new._version, steps_of(name, args, kwargs)
    return new


STEPS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""
How tensors were made that PyTorch computes of numbers alone, as a node's ``made`` has it, and in
which version of their memory: what is written in place afterwards is known no more.
"""


def steps_of(name: str, args: Any, kwargs: dict[str, Any]) -> Node | None:
    """Follow what PyTorch computes of numbers alone; None where it has no rule or is in place."""
    if name not in ATEN:
        return None
    given, named = tree_map(steps_behind, (args, kwargs))
    with np.errstate(all="ignore"), suppress(NotUnderstood, AttributeError, TypeError):
        found = ATEN[name](*given, **named)
        return node_of(found).made if isinstance(found, (Traced, ndarray)) else None
    return None


def steps_behind(x: Any) -> Any:
    """Return the steps that made a tensor, as a traced array; whole numbers as they are."""
    if not isinstance(x, torch.Tensor):
        return x
    followed = content_of(x)
    if isinstance(followed, Traced) and followed.node.made is not None:
        return followed
    return numbers(np.asarray(followed))


def follow(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do what an operation of ATen does, on what its tensors stand for."""
    name = func.overloadpacket.__name__
    if name in FACTORIES:
        return made(func, *tree_map(empty_like, (args, kwargs)))
    in_place = name.endswith("_") and not name.endswith("__")
    rule = ATEN.get(name[:-1] if in_place else name)
    if rule is None:
        return _decomposed(func, args, kwargs)
    given, named = tree_map(content_of, (args, kwargs))
    with np.errstate(all="ignore"):
        if in_place:
            write(args[0], rule(*given, **named))
            return args[0]
        found = rule(*given, **named)
    leaves, tree = tree_flatten((args, kwargs))
    like = result_like(func, tree, tuple(map(described, leaves)))
    if isinstance(like, (tuple, list)):
        return type(like)(map(wrapped, like, found))
    return wrapped(like, found)


def _decomposed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func in DECOMPOSITIONS:
        return DECOMPOSITIONS[func](*args, **kwargs)
    found = func.decompose(*args, **kwargs)
    if found is NotImplemented:
        raise refuse(f"torch's {func.overloadpacket.__name__}")
    return found


def content_of(x: Any) -> Any:
    """Return what a tensor stands for: a traced array, a condition, or NumPy's array."""
    if isinstance(x, Followed):
        return x.followed
    if not isinstance(x, torch.Tensor):
        return x
    version, steps = STEPS.get(x, (0, None))
    if steps is not None and x._version == version:
        node = constant(x.double().numpy())
        node.made = steps
        return Traced(node)
    return (x.double() if x.dtype.is_floating_point else x).numpy()


def empty_like(x: Any) -> Any:
    if not isinstance(x, Followed):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)


Described = tuple[Any, ...]
"""What an argument is known by: a tensor by its shape, strides and dtype, else its type, and it."""


def described(x: Any) -> Described:
    if isinstance(x, torch.Tensor):
        return torch.Tensor, (tuple(x.shape), x.stride(), x.dtype)
    return type(x), x


def without_numbers(told: Described) -> Any:
    kind, own = told
    if kind is not torch.Tensor:
        return own
    shape, strides, dtype = own
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


@lru_cache(maxsize=4096)
def result_like(func: Any, tree: Any, leaves: tuple[Described, ...]) -> Any:
    """
    What an operation gives of such arguments, without numbers; PyTorch finds that out in Python,
    which takes longer than to follow it, and a mutant calls what its specification called.
    """
    args, kwargs = tree_unflatten(map(without_numbers, leaves), tree)
    return func(*args, **kwargs | ({"device": "meta"} if "device" in kwargs else {}))


def wrapped(like: Any, content: Any) -> Any:
    """Return the tensor of a result: PyTorch's own where only masks and numbers went into it."""
    if not isinstance(like, torch.Tensor) or content is None:
        return like
    if isinstance(content, (Traced, Condition)):
        return Followed(like, content)
    x = torch.from_numpy(np.array(content))
    return (
        Followed(like, Traced(constant(content))) if x.dtype.is_floating_point else x.to(like.dtype)
    )


def write(place: Any, new: Any) -> None:
    """Write in place, through a view into what it is a view of."""
    if not isinstance(place, Followed):
        raise refuse("followed numbers written into a tensor of masks or numbers")
    if not isinstance(place.followed, Traced):
        place.followed = new
        return
    place.followed.write(numbers_of(place.followed.node), node_of(new))


def run_followed(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """Run a PyTorch function on traced arrays; its answer in traced arrays."""
    given = {name: tensor_of(x) for name, x in inputs.items()}
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Following():  # type: ignore[no-untyped-call]
        answer = function(**given)
    return tree_map_only(torch.Tensor, content_of, answer)


def run_itself(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """Run a PyTorch function in float64, as it is; its answer in NumPy's arrays."""
    given = {name: tensor_of(x) for name, x in inputs.items()}
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        answer = function(**given)
    return tree_map_only(torch.Tensor, content_of, answer)


def tensor_of(x: Any) -> Any:
    if isinstance(x, (Traced, Condition)):
        kind = torch.float64 if isinstance(x, Traced) else torch.bool
        return Followed(torch.empty(x.shape, dtype=kind, device="meta"), x)
    if isinstance(x, ndarray):
        return torch.from_numpy(np.array(x, order="C"))
    return x
