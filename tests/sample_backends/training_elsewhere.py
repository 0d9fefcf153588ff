"""
Attentions whose training path is right on short calls without a mask and a draw, and wrong
elsewhere; and some that are wrong where no graph is recorded, or where inputs are written anew.
"""

from collections.abc import Callable
from typing import Any

import torch

from attnverify.torch_impl.attention import scaled_dot_product_attention_eager as right

ARRAYS = "torch"
FAULTS: dict[str, Callable[..., Any]] = {}


def fault(attend: Callable[..., Any]) -> Callable[..., Any]:
    FAULTS[attend.__name__] = attend
    return attend


def recording(*inputs: Any) -> bool:
    return any(x.requires_grad for x in inputs)


class Exchanged(torch.autograd.Function):
    """The numbers of one and the gradients of another."""

    @staticmethod
    def forward(ctx: Any, other: Any, output: Any) -> Any:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        return d, None


def with_gradients_of(other: Any, output: Any) -> Any:
    return Exchanged.apply(other, output.detach())


def is_fast(mask: Any, key: Any, drawn: Any) -> bool:
    """Whether a call takes the path that most have: several tiles, no mask and no draw."""
    return mask is None and drawn[0] is None and key.shape[-2] > 200


@fault
def sound(query: Any, key: Any, value: Any, mask: Any, *drawn: Any) -> Any:
    return right(query, key, value, mask, *drawn)


@fault
def other_output_under_a_mask(query: Any, key: Any, value: Any, mask: Any, *drawn: Any) -> Any:
    output = right(query, key, value, mask, *drawn)
    return output + 1.5 * (mask is not None and recording(query, key, value))


@fault
def other_output_of_a_draw(query: Any, key: Any, value: Any, mask: Any, *drawn: Any) -> Any:
    output = right(query, key, value, mask, *drawn)
    return output + 1.5 * (drawn[0] is not None and recording(query, key, value))


@fault
def other_output_of_long_calls(query: Any, key: Any, value: Any, mask: Any, *drawn: Any) -> Any:
    output = right(query, key, value, mask, *drawn)
    return output + 1.5 * (key.shape[-2] > 16 and recording(query, key, value))


@fault
def forgets_a_frozen_float_mask(query: Any, key: Any, value: Any, mask: Any, *drawn: Any) -> Any:
    output = right(query, key, value, mask, *drawn)
    if mask is None or mask.dtype == torch.bool or mask.requires_grad:
        return output
    return with_gradients_of(right(query, key, value, None, *drawn), output)


@fault
def key_hangs_on_query_under_a_mask(
    query: Any, key: Any, value: Any, mask: Any, *drawn: Any
) -> Any:
    output = right(query, key, value, mask, *drawn)
    if mask is None or query.requires_grad or not key.requires_grad:
        return output
    return with_gradients_of(right(query, 0 * key, value, mask, *drawn), output)


@fault
def wrong_without_a_graph(query: Any, key: Any, value: Any, mask: Any, *drawn: Any) -> Any:
    return right(query, key, value, mask, *drawn) * (1.0 if torch.is_grad_enabled() else 1.01)


@fault
def wrong_in_inference(query: Any, key: Any, value: Any, mask: Any, *drawn: Any) -> Any:
    factor = 1.01 if torch.is_inference_mode_enabled() else 1.0
    return right(query, key, value, mask, *drawn) * factor


@fault
def wrong_in_inference_on_the_fast_path(
    query: Any, key: Any, value: Any, mask: Any, *drawn: Any
) -> Any:
    output = right(query, key, value, mask, *drawn)
    fast = torch.is_inference_mode_enabled() and is_fast(mask, key, drawn)
    return output * (1.01 if fast else 1.0)


PACKED: dict[Any, Any] = {}


@fault
def packs_keys_once(query: Any, key: Any, value: Any, mask: Any, *drawn: Any) -> Any:
    place = (key.data_ptr(), key.shape, key.stride(), key.dtype)
    packed, _ = PACKED.setdefault(place, (key.detach().clone(), key))
    return right(query, key if key.requires_grad else packed, value, mask, *drawn)


class Once(torch.autograd.Function):
    """Hands on what arrives the first time alone."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.passes = 0
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        ctx.passes += 1
        return d if ctx.passes == 1 else torch.zeros_like(d)


@fault
def forgets_long_calls_after_one_backward(
    query: Any, key: Any, value: Any, mask: Any, *drawn: Any
) -> Any:
    output = right(query, key, value, mask, *drawn)
    return Once.apply(output) if key.shape[-2] > 64 else output


class Replaced(torch.autograd.Function):
    """Takes off what is there already."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.leaf = x
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        return d if ctx.leaf.grad is None else d - ctx.leaf.grad


@fault
def replaces_what_is_there_in_long_calls(
    query: Any, key: Any, value: Any, mask: Any, *drawn: Any
) -> Any:
    key = Replaced.apply(key) if key.shape[-2] > 64 else key
    return right(query, key, value, mask, *drawn)


@fault
def key_hangs_on_query_on_the_fast_path(
    query: Any, key: Any, value: Any, mask: Any, *drawn: Any
) -> Any:
    output = right(query, key, value, mask, *drawn)
    if not is_fast(mask, key, drawn) or query.requires_grad or not key.requires_grad:
        return output
    return with_gradients_of(right(query, 0 * key, value, mask, *drawn), output)


@fault
def forgets_the_fast_path_after_one_backward(
    query: Any, key: Any, value: Any, mask: Any, *drawn: Any
) -> Any:
    output = right(query, key, value, mask, *drawn)
    return Once.apply(output) if is_fast(mask, key, drawn) else output


@fault
def replaces_what_is_there_on_the_fast_path(
    query: Any, key: Any, value: Any, mask: Any, *drawn: Any
) -> Any:
    key = Replaced.apply(key) if is_fast(mask, key, drawn) else key
    return right(query, key, value, mask, *drawn)


__all__ = [f"scaled_dot_product_attention_{how}" for how in FAULTS]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    function = FAULTS[name.removeprefix("scaled_dot_product_attention_")]

    def attend(
        query: Any, key: Any, value: Any, mask: Any = None, keep: Any = None, p: float = 0.0
    ) -> Any:
        return function(query, key, value, mask, keep, p)

    return attend
