"""
Attentions that are right where every input needs a gradient and each graph goes back once, and
wrong elsewhere on the training path.
"""

from typing import Any

import torch

from attnverify.torch_impl.attention import scaled_dot_product_attention_eager as right

ARRAYS = "torch"

__all__ = [
    f"scaled_dot_product_attention_{how}"
    for how in (
        "sound",
        "zero_for_value_alone",
        "key_hangs_on_query",
        "frozen_query_halves_value",
        "all_or_nothing",
        "other_forward_while_recording",
        "overwrites_what_it_saved",
        "forgets_after_one_backward",
        "replaces_what_is_there",
        "adds_twice_to_what_is_there",
    )
]


class Attention(torch.autograd.Function):
    """The gradients of a forward pass made anew, each through `spoil`."""

    @staticmethod
    def forward(
        ctx: Any, how: str, options: Any, query: Any, key: Any, value: Any, mask: Any
    ) -> Any:
        ctx.how, ctx.options, ctx.mask = how, options, mask
        ctx.inputs = [x.detach().clone() for x in (query, key, value)]
        ctx.leaves, ctx.passes = (query, key, value), 0
        output = right(query, key, value, mask, *options)
        recording = any(ctx.needs_input_grad)
        return 1.01 * output if how == "other_forward_while_recording" and recording else output

    @staticmethod
    def backward(ctx: Any, d_output: Any) -> Any:
        is_float = ctx.mask is not None and ctx.mask.is_floating_point()
        with torch.enable_grad():
            given = [x.detach().requires_grad_() for x in ctx.inputs]
            mask = ctx.mask.detach().requires_grad_() if is_float else ctx.mask
            output = right(*given, mask, *ctx.options)
            leaves = [*given, mask] if is_float else given
            grads = list(torch.autograd.grad(output, leaves, d_output))
        spoil(ctx, grads)
        ctx.passes += 1
        return None, None, *grads, *(() if is_float else (None,))


def spoil(ctx: Any, grads: list[Any]) -> None:
    """Make wrong what the fault makes wrong, in place."""
    query, key, value = (bool(need) for need in ctx.needs_input_grad[2:5])
    if ctx.how == "zero_for_value_alone" and not (query or key):
        grads[2] = torch.zeros_like(grads[2])
    if ctx.how == "key_hangs_on_query" and not query:
        grads[1] = torch.zeros_like(grads[1])
    if ctx.how == "frozen_query_halves_value" and not query:
        grads[2] = grads[2] / 2
    if ctx.how == "all_or_nothing" and not (query and key and value):
        raise RuntimeError("an input without a gradient")
    if ctx.how == "overwrites_what_it_saved":
        ctx.inputs[1].mul_(2)
    if ctx.how == "forgets_after_one_backward" and ctx.passes:
        grads[:] = [torch.zeros_like(x) for x in grads]
    for number, leaf in enumerate(ctx.leaves):
        if leaf.grad is not None and ctx.how == "replaces_what_is_there":
            grads[number] = grads[number] - leaf.grad
        if leaf.grad is not None and ctx.how == "adds_twice_to_what_is_there":
            grads[number] = 2 * grads[number]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    how = name.removeprefix("scaled_dot_product_attention_")

    def attend(
        query: Any, key: Any, value: Any, mask: Any = None, keep: Any = None, p: float = 0.0
    ) -> Any:
        return Attention.apply(how, (keep, p), query, key, value, mask)

    return attend
