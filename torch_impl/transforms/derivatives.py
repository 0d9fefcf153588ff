"""
What operators with a gradient of their own do under PyTorch's transformations of derivatives.

Reverse mode is right, by ``backward`` and by ``torch.func.grad``, and so is ``vmap``, entry by
entry. A derivative of the gradient is refused in words, also where PyTorch would take it for zero
in silence, and so is forward mode.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

__all__ = [
    "applied",
    "derivatives_of_formula",
    "entry_by_entry",
    "first_derivatives",
    "in_forward_mode",
    "is_batched",
    "is_functorch_wrapped",
    "may_look",
]

REFUSAL = "{who} has first derivatives alone: for a derivative of its gradient take {instead}"
NO_FORWARD_MODE = "{who} has no forward mode (no jvp): take {instead}"


def in_forward_mode() -> bool:
    """Whether somebody has tensors with tangents, by ``forward_ad`` or ``torch.func.jvp``."""
    return forward_ad._current_level >= 0


def is_batched(x: Tensor | None) -> bool:
    """Whether a tensor stands for several under ``vmap``."""
    return x is not None and torch._C._functorch.is_batchedtensor(x)


def is_functorch_wrapped(x: Tensor) -> bool:
    """Whether a transformation of ``torch.func`` has a tensor in its hands."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def may_look(*tensors: Tensor) -> bool:
    """
    Whether what is done may hang on the numbers in tensors: not where a graph is made of the calls,
    nor where a tensor has no numbers, or stands for several under ``vmap``.
    """
    if torch.compiler.is_compiling() or any(type(x) is FakeTensor or x.is_meta for x in tensors):
        return False
    if any(x.is_cuda for x in tensors) and torch.cuda.is_current_stream_capturing():
        return False
    return not any(map(_is_batched_inside, tensors))


def _is_batched_inside(x: Tensor) -> bool:
    """Whether a tensor stands for several, whatever other transformations are around it."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def applied(
    function: type[torch.autograd.Function], who: str, instead: str, *args: Any
) -> tuple[Tensor, ...]:
    """
    What an autograd function without a ``jvp`` makes of its arguments; where PyTorch asks for one,
    which may be deep inside of other transformations, its refusal is put in our words.

    A ``jvp`` that refuses would keep ``torch.compile`` out.
    """
    if not in_forward_mode():
        return tuple(function.apply(*args))
    try:
        return tuple(function.apply(*args))
    except (NotImplementedError, RuntimeError) as error:
        if "jvp" not in str(error):
            raise
        refusal = NO_FORWARD_MODE.format(who=who, instead=instead)
        raise NotImplementedError(refusal) from error


def first_derivatives(
    who: str, instead: str, grads: Sequence[Tensor], *given: Tensor | None
) -> list[Tensor]:
    """
    The gradients that somebody has computed from what was given, as functions of it whose own
    derivative is refused.

    ``once_differentiable`` refuses it only where the gradient of the output needs one.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return list(grads)  # nobody will ask, or the compiler refuses on its own
    depends_on = [x for x in given if x is not None and x.is_floating_point()]
    refusal = REFUSAL.format(who=who, instead=instead)
    return list(_NoSecond.apply(refusal, len(grads), *grads, *depends_on))


class _NoSecond(torch.autograd.Function):
    """The first tensors as they are, for the autograd functions of all of them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(refusal: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.refusal = inputs[0]

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> Any:
        raise NotImplementedError(ctx.refusal)


def derivatives_of_formula(
    formula: Callable[..., Tensor], grads: Sequence[Tensor], d_output: Tensor, *given: Tensor
) -> list[Tensor]:
    """
    The gradients that somebody has computed of a formula for the output, each by what is given in
    the same place: their own derivatives are those of the formula's gradient, of any order.
    """
    return list(_ByFormula.apply(formula, len(grads), *grads, d_output, *given))


class _ByFormula(torch.autograd.Function):
    """The first tensors as they are, for the autograd functions of all of them."""

    @staticmethod
    def forward(
        ctx: Any, formula: Callable[..., Tensor], count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.formula = formula
        ctx.save_for_backward(*tensors[count:])
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *d_grads: Tensor) -> Any:
        saved, again = ctx.saved_tensors, torch.is_grad_enabled()
        with torch.enable_grad():
            if not again:
                saved = [x.detach().requires_grad_(x.requires_grad) for x in saved]
            d_output, *given = saved
            first = gradients_of(ctx.formula(*given), given, d_output, True)
            pairs = [(x, d) for x, d in zip(first, d_grads, strict=True) if x.requires_grad]
            second = gradients_of([x for x, _ in pairs], saved, [d for _, d in pairs], again)
        return None, None, *[None] * len(d_grads), *second


def gradients_of(outputs: Any, inputs: Sequence[Tensor], d_outputs: Any, again: bool) -> Any:
    """The gradients by the inputs; zeros by those that need none, and by what has no part in it."""
    needing = [x for x in inputs if x.requires_grad]
    found = iter(
        torch.autograd.grad(outputs, needing, d_outputs, create_graph=again, materialize_grads=True)
    )
    return [next(found) if x.requires_grad else torch.zeros_like(x) for x in inputs]


def entry_by_entry(operator: Any) -> None:
    """Let ``vmap`` call the operator once for each entry, which for these is as fast as it gets."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        results = [
            operator(
                *(x if d is None else x.select(d, i) for x, d in zip(args, in_dims, strict=True))
            )
            for i in range(info.batch_size)
        ]
        kind = type(results[0])
        if kind is Tensor:
            return torch.stack(results), 0
        stacked = kind(torch.stack(entries) for entries in zip(*results, strict=True))
        return stacked, kind(0 for _ in stacked)

    torch.library.register_vmap(operator, rule)
