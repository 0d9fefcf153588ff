"""
Every way through a module as an implementation with a verdict of its own.

``_module``             eval mode, the sequence first
``_module_batch_first`` eval mode, the batch first
``_module_train``       train mode, the sequence first; a draw that is given is the module's own
``_autocast``           eval mode, inputs and parameters in float32, in an autocast region of the
                        dtype in which it is judged; there is none of float32 or float64
``_module_triton``      eval mode, the sequence first, by the Triton kernels; not exported, for they
                        are judged beside it: a test takes it

Each builds the module without memory, calls it on the parameters that it is given, so that
gradients reach them, and turns the inputs into the module's layout and the output back.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from attnverify.contract.arguments import check_draw, check_mask
from attnverify.contract.attention import check_additive, check_attention, pairs
from attnverify.contract.layers import (
    X,
    check_alibi,
    check_multi_head,
    check_relative,
    check_self_attention,
    check_xl_layer,
    check_xl_stack,
)
from attnverify.contract.shapes import check

from .. import attention, layers
from ..arrays import TENSORS
from ..attention import Keep, Mask
from ..layers import positions_of
from ..memory import Mems
from ..projections import Parameters
from ..relative import Visible, four_axes
from .attention_modules import (
    AdditiveAttention,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from .labml_modules import AlibiMultiHeadAttention, RelativeMultiHeadAttention
from .layouts import layout, visible_where_not
from .transformer_xl import TransformerXL, TransformerXLLayer


class Way(NamedTuple):
    """How a module is called: in which layout, in which mode, and what it computes with."""

    batch_first: bool = False
    train: bool = False
    implementation: str = "torch"
    autocast: bool = False

    def module(
        self, kind: Callable[..., nn.Module], parameters: Parameters, *sizes: Any, **options: Any
    ) -> Callable[..., Any]:
        """
        The module as a function, with the given parameters in their places and zeros for the biases
        that are absent.
        """
        like = next(iter(parameters.values()))
        options |= {"implementation": self.implementation}
        module, shapes = built(kind, self.train, like.dtype, sizes, tuple(options.items()))
        absent = {
            name: like.new_zeros(shape) for name, shape in shapes.items() if name not in parameters
        }
        state = {**parameters, **absent}
        return lambda *args, **kwargs: functional_call(module, state, args, kwargs, strict=True)

    def turn(self, x: Any) -> Any:
        """Between the layout of the operation and that of the module."""
        return None if x is None else layout(self.batch_first).turn(x)

    def mask(self, visible: Any, shape: tuple[int, ...]) -> Any:
        """
        The visible of an operation as labml's layers take it, [N M B H] with the sequence first.
        """
        check_mask(TENSORS, "visible", visible, shape)
        if self.batch_first or visible is None:
            return visible
        return four_axes(visible).permute(2, 3, 0, 1)

    def drawing(self, keep: Keep, p: float, *shape: int) -> AbstractContextManager[Any]:
        """The surroundings in which the module, with a dropout of p, draws ``keep`` once."""
        return self.drawing_each(None if keep is None else [keep.expand(shape)], p)

    def drawing_each(self, draws: Iterable[Tensor] | None, p: float) -> AbstractContextManager[Any]:
        """The same for several draws in a row."""
        if draws is None:
            return nullcontext()
        if not self.train:
            raise NotImplementedError("eval mode has no dropout")
        if p == 0:
            raise NotImplementedError("a module draws nothing where p is 0")
        return GivenDraws(draws)


class GivenDraws(TorchFunctionMode):
    """
    Lets ``torch.rand`` give numbers from which these draws follow: 0 for what is dropped, 1 for
    what is kept.
    """

    def __init__(self, draws: Iterable[Tensor]) -> None:
        super().__init__()
        self.draws = iter(draws)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.rand:
            return func(*args, **(kwargs or {}))
        keep = next(self.draws)
        if tuple(args[0]) != tuple(keep.shape):
            raise ValueError(f"draw: wanted shape {tuple(args[0])}, got {tuple(keep.shape)}")
        return keep.float()


@lru_cache(maxsize=512)
def built(
    kind: Callable[..., nn.Module],
    train: bool,
    dtype: torch.dtype,
    sizes: tuple[Any, ...],
    options: tuple[tuple[str, Any], ...],
) -> tuple[nn.Module, dict[str, torch.Size]]:
    """
    A module without memory, kept from call to call as its users keep theirs, and the shapes of its
    parameters.
    """
    module = kind(*sizes, **dict(options), dtype=dtype, device="meta").train(train)
    return module, {name: x.shape for name, x in module.state_dict().items()}


def additive_attention(
    way: Way,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    w_query: Tensor,
    w_key: Tensor,
    w_score: Tensor,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    check_additive(TENSORS, (query, key, value, w_query, w_key, w_score), mask, keep, p)
    parameters = {"w_query": w_query, "w_key": w_key, "w_score": w_score}
    module = way.module(
        AdditiveAttention, parameters, query.shape[-1], key.shape[-1], len(w_score), dropout=p
    )
    with way.drawing(keep, p, *query.shape[:-1], key.shape[-2]):
        return module(query, key, value, visible_where_not(mask))


def scaled_dot_product_attention(
    way: Way,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    check_attention(TENSORS, query, key, value, mask, keep, p)
    module = ScaledDotProductAttention(p, implementation=way.implementation).train(way.train)
    with way.drawing(keep, p, *query.shape[:-1], key.shape[-2]):
        return module(query, key, value, visible_where_not(mask))


def self_attention(
    way: Way,
    x: Tensor,
    parameters: Parameters,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    check_self_attention(TENSORS, x, parameters, mask, keep, p)
    B, N, _ = x.shape
    (K, F), E = parameters["w_query"].shape, len(parameters["w_value"])
    options = {"batch_first": way.batch_first, "dropout": p}
    module = way.module(SelfAttention, parameters, F, K, E, **options)
    draws = None if keep is None else [keep.expand(B, N, N).unsqueeze(1)]
    with way.drawing_each(draws, p):
        return way.turn(module(way.turn(x), visible_where_not(mask)))


def multi_head_attention(
    way: Way,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameters: Parameters,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    shape = pairs(check_multi_head(TENSORS, (query, key, value), parameters, num_heads, keep, p))
    options = {"batch_first": way.batch_first, "dropout": p}
    module = way.module(MultiHeadAttention, parameters, query.shape[-1], num_heads, **options)
    with way.drawing(keep, p, *shape):
        output, weights = module(*map(way.turn, (query, key, value)), attn_mask, key_padding_mask)
    return way.turn(output), weights


def multi_head_self_attention(
    way: Way,
    x: Tensor,
    parameters: Parameters,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    check(TENSORS, X, x)
    shape = pairs(check_multi_head(TENSORS, (x, x, x), parameters, num_heads, keep, p))
    options = {"batch_first": way.batch_first, "dropout": p}
    module = way.module(MultiHeadSelfAttention, parameters, x.shape[-1], num_heads, **options)
    with way.drawing(keep, p, *shape):
        output, weights = module(way.turn(x), attn_mask, key_padding_mask)
    return way.turn(output), weights


def relative_multi_head_attention(
    way: Way,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameters: Parameters,
    num_heads: int,
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    shape = pairs(check_relative(TENSORS, (query, key, value), parameters, num_heads, keep, p))
    options = {
        "align": align,
        "P": len(parameters["key_pos_bias"]) // 2,
        "batch_first": way.batch_first,
        "dropout_prob": p,
    }
    module = way.module(
        RelativeMultiHeadAttention, parameters, num_heads, query.shape[-1], **options
    )
    q, k, v = map(way.turn, (query, key, value))
    with way.drawing(keep, p, *shape):
        return way.turn(module(query=q, key=k, value=v, mask=way.mask(visible, shape)))


def alibi_multi_head_attention(
    way: Way,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameters: Parameters,
    num_heads: int,
    visible: Tensor,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    check_alibi(TENSORS, (query, key, value), parameters, num_heads, visible, keep, p)
    shape = query.shape[0], num_heads, query.shape[1], key.shape[1]
    options = {"batch_first": way.batch_first, "dropout_prob": p}
    module = way.module(AlibiMultiHeadAttention, parameters, num_heads, query.shape[-1], **options)
    q, k, v = map(way.turn, (query, key, value))
    with way.drawing(keep, p, *shape):
        return way.turn(module(query=q, key=k, value=v, mask=visible))


def transformer_xl_layer(
    way: Way,
    x: Tensor,
    position: Tensor,
    parameters: Parameters,
    num_heads: int,
    mem: Tensor | None = None,
    visible: Visible = None,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    shape = pairs(check_xl_layer(TENSORS, x, position, parameters, num_heads, mem, eps))
    check_draw(TENSORS, keep, p, shape)
    options: dict[str, Any] = {"eps": eps, "batch_first": way.batch_first, "dropout": p}
    options["feed_forward"] = inner_width([parameters])
    module = way.module(TransformerXLLayer, parameters, num_heads, x.shape[-1], **options)
    with way.drawing(keep, p, *shape):
        return way.turn(module(way.turn(x), position, way.turn(mem), way.mask(visible, shape)))


def transformer_xl(
    way: Way,
    x: Tensor,
    parameters: list[Parameters],
    num_heads: int,
    mems: Mems,
    mem_len: int,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Tensor, Mems]:
    check_xl_stack(TENSORS, x, parameters, mems)
    position = positions_of(x, mems)
    for weights in parameters:
        mem = None if mems is None else mems[0]
        check_xl_layer(TENSORS, x, position, weights, num_heads, mem, eps)
    stacked = {
        f"layers.{layer}.{name}": x
        for layer, weights in enumerate(parameters)
        for name, x in weights.items()
    }
    shape = len(parameters), x.shape[0], num_heads, x.shape[1], len(position)
    check_draw(TENSORS, keep, p, shape)
    options: dict[str, Any] = {"eps": eps, "batch_first": way.batch_first, "dropout": p}
    options["feed_forward"] = inner_width(parameters)
    module = way.module(
        TransformerXL, stacked, len(parameters), num_heads, x.shape[-1], mem_len, **options
    )
    with way.drawing_each(None if keep is None else keep.expand(shape), p):
        output, new = module(way.turn(x), None if mems is None else [way.turn(mem) for mem in mems])
    return way.turn(output), None if new is None else [way.turn(mem) for mem in new]


def inner_width(parameters: list[Parameters]) -> int | None:
    """The inner width of the feed-forward in each layer; None where there is none."""
    widths = {len(each["ff_in.weight"]) if "ff_in.weight" in each else None for each in parameters}
    if len(widths) > 1:
        raise NotImplementedError("the layers of a module are alike")
    return widths.pop()


WAYS = {
    "module": Way(),
    "module_batch_first": Way(batch_first=True),
    "module_train": Way(train=True),
    "autocast": Way(autocast=True),
}
IN_BOTH_LAYOUTS = (
    self_attention,
    multi_head_attention,
    multi_head_self_attention,
    relative_multi_head_attention,
    alibi_multi_head_attention,
    transformer_xl_layer,
    transformer_xl,
)
"""The other two have one layout, that of the operation."""


def path(run: Callable[..., Any], way: Way) -> Callable[..., Any]:
    """The operation of that name, with its parameters, by this way through its module."""

    @wraps(getattr(layers, run.__name__, None) or getattr(attention, run.__name__))
    def through_the_module(*args: Any, **kwargs: Any) -> Any:
        call = partial(run, way)
        return in_region(call, args, kwargs) if way.autocast else call(*args, **kwargs)

    return through_the_module


def in_region(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """
    A call in float32 in an autocast region of the dtype of what is given, and its result in that
    dtype.

    What the region rounds it holds already, so that the rounding of its inputs costs nothing: what
    is judged is what it rounds on the way.
    """
    floats = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    dtype = next((x.dtype for x in floats if x.is_floating_point()), None)
    if dtype not in HALVES:
        call(*args, **kwargs)  # what is wrong is refused in every dtype
        raise NotImplementedError(f"an autocast region has a half type, got {dtype}")
    args, kwargs = cast((args, kwargs), torch.float32)
    with torch.autocast(floats[0].device.type, dtype):
        return cast(call(*args, **kwargs), dtype)


def cast(tree: Any, dtype: torch.dtype) -> Any:
    """The same with its float tensors in another dtype."""
    return tree_map(
        lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, tree
    )


HALVES = (torch.float16, torch.bfloat16)


PATHS = {
    f"{run.__name__}_{how}": path(run, way) for run in IN_BOTH_LAYOUTS for how, way in WAYS.items()
}
PATHS |= {
    f"{run.__name__}_{how}": path(run, WAYS[how])
    for run in (additive_attention, scaled_dot_product_attention)
    for how in ("module", "module_train", "autocast")
}
globals().update(PATHS)
__all__ = list(PATHS)

TRITON = {
    f"{run.__name__}_module_triton": path(run, Way(implementation="triton"))
    for run in (additive_attention, scaled_dot_product_attention, *IN_BOTH_LAYOUTS)
}
"""
Not in ``__all__``: interpreted, they would take as long as the kernels that they call, which are
judged on their own.
"""
