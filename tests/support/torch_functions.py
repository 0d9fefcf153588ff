"""The functions of torch_impl that multiply something, by every path, with inputs for each."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

B, H, N, M, D, E = 2, 2, 3, 5, 4, 6
CHAPTERS = ("scores", "attention", "alibi", "relative", "blocked", "triton")
OPERATIONS = (
    "additive_score",
    "scaled_dot_product_score",
    "transformer_xl_score",
    "learned_relative_score",
    "additive_attention",
    "scaled_dot_product_attention",
    "alibi_attention",
    "transformer_xl_attention",
    "learned_relative_attention",
)

Call = Callable[..., Any]


def _paths() -> dict[str, Call]:
    modules = [import_module(f"attnverify.torch_impl.{chapter}") for chapter in CHAPTERS]
    return {
        name: getattr(module, name)
        for module in modules
        for name in module.__all__
        if name.startswith(OPERATIONS)
    }


PATHS = _paths()
"""Every implementation of these operations by its name, the fused kernels among them."""


def split(path: str) -> tuple[str, str]:
    """Operation and how of a path; the plain path's how is empty."""
    operation = max((name for name in OPERATIONS if path.startswith(name)), key=len)
    return operation, path.removeprefix(operation).strip("_")


def taking(*hows: str) -> list[str]:
    """The paths of these kinds."""
    return [path for path in PATHS if split(path)[1] in hows]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def visible(*shape: int) -> Tensor:
    """Some pairs; every row of shape [N M] sees its first key."""
    pairs = normal(*shape).gt(-0.5)
    pairs[..., 0] = True
    return pairs


def inputs_of(
    path: str, length: int = N, more: int = M - N, batch: int = B, dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """The arguments of a path by name, without masks; what is a float tensor needs a gradient."""
    operation, _ = split(path)
    keys, P = length + more, 32
    heads = {
        "query": normal(batch, H, length, D),
        "key": normal(batch, H, keys, D),
        "value": normal(batch, H, keys, E),
    }
    features = {"w_query": normal(7, D), "w_key": normal(7, D) + 1, "w_score": normal(7)}
    positions = {"position": normal(H, keys, D), "u": normal(H, D), "v": normal(H, D) + 1}
    tables = {
        "key_pos_embeddings": normal(2 * P, H, D),
        "key_pos_bias": normal(2 * P, H),
        "query_pos_bias": normal(H, D),
        "align": "end",
    }
    more_of = {"additive": features, "transformer": positions, "learned": tables}
    given = heads | more_of.get(operation.partition("_")[0], {})
    if operation.startswith("additive"):
        given |= {name: x[:, 0].contiguous() for name, x in heads.items()}
    if operation.endswith("score"):
        del given["value"]
    return {
        name: x.to(dtype or x.dtype).requires_grad_() if isinstance(x, Tensor) else x
        for name, x in given.items()
    }


def masks_of(path: str) -> dict[str, Tensor]:
    """A mask for the path, under its name; none for a score."""
    operation, _ = split(path)
    if operation.endswith("score"):
        return {}
    name = "visible" if operation.startswith(("alibi", "transformer", "learned")) else "mask"
    return {name: visible(N, M)}


def differentiable(given: dict[str, Any]) -> list[Tensor]:
    return [x for x in given.values() if isinstance(x, Tensor) and x.requires_grad]


def forward_and_gradients(path: Call, given: dict[str, Any]) -> list[Tensor]:
    """The output, and the gradients of a weighted sum of it by every input that needs one."""
    output = path(**given)
    weights = normal(*output.shape).to(output)
    return [output, *torch.autograd.grad((output * weights).sum(), differentiable(given))]
