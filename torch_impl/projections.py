"""
Projections: the parameters of every layer, how they are held to their shapes, and the products that
begin and end a layer.

A layer is computed with functions of x, whoever owns the weights: the submodules of a module
(:mod:`torch_impl.modules`), or a mapping from name to tensor.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .isolation import reaches_neighbours
from .scores import apart
from .transforms.autocast import lowered

Parameters = Mapping[str, Tensor]
Project = Callable[[Tensor], Tensor]

OF_SELF = ("w_query", "w_key", "w_value")
OF_HEADS = ("q_proj", "k_proj", "v_proj", "out_proj")
LABML = ("query.linear", "key.linear", "value.linear", "output")
TABLES = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")


class Projections(NamedTuple):
    """What makes queries, keys and values of the inputs, and the output of what was attended."""

    query: Project
    key: Project
    value: Project
    output: Project


class TransformerXLParts(NamedTuple):
    """
    What a layer of Transformer-XL is made of: queries of a segment with keys and values of memory
    and segment, the positions' projection, the output's, the norm, the two biases, and what follows
    the norm, if anything does.
    """

    query_key_value: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    position: Project
    output: Project
    norm: Project
    u: Tensor
    v: Tensor
    feed_forward: Project | None = None


def of_mapping(parameters: Parameters, names: Sequence[str]) -> Projections:
    """The projections whose weights and biases have these names."""
    return Projections(*(partial(linear, parameters=parameters, name=name) for name in names))


def parts_of_mapping(parameters: Parameters, eps: float) -> TransformerXLParts:
    def projection(name: str) -> Project:
        return partial(linear, parameters=parameters, name=name)

    def norm(name: str) -> Project:
        given = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        return lambda y: normalised(y, *given, eps)

    feeds = "ff_in.weight" in parameters
    return TransformerXLParts(
        partial(query_key_value, parameters=parameters),
        projection("r_net"),
        projection("o_net"),
        norm("layer_norm"),
        parameters["u"],
        parameters["v"],
        feed_forward(projection("ff_in"), projection("ff_out"), norm("ff_norm")) if feeds else None,
    )


def feed_forward(inner: Project, outer: Project, norm: Project) -> Project:
    """The position-wise feed-forward: two linear maps, ReLU, residual, norm."""
    return lambda x: norm(x + outer(F.relu(inner(x))))


def normalised(y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """
    Layer norm over the last axis, of half types on a CPU in float32: there PyTorch adds up the
    gradients of weight and bias row by row in the half type, where 3000 ones are 256.
    """
    half = y.dtype in (torch.float16, torch.bfloat16) and y.dtype == weight.dtype
    if y.device.type != "cpu" or not half:
        return F.layer_norm(y, y.shape[-1:], weight, bias, eps)
    wide_bias = None if bias is None else bias.float()
    return F.layer_norm(y.float(), y.shape[-1:], weight.float(), wide_bias, eps).to(y.dtype)


def linear(x: Tensor, parameters: Parameters, name: str) -> Tensor:
    return affine(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))


@lowered
def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, in float32 where a row of NaN would reach its neighbour."""
    x, weight = apart(x, weight)
    if reaches_neighbours(x, *weight.shape) and weight.dtype == x.dtype:
        wide_bias = None if bias is None else bias.float()
        return F.linear(x.float(), weight.float(), wide_bias).to(x.dtype)
    return F.linear(x, weight, bias)


def query_key_value(
    x: Tensor, keys: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv_net, its first third on the segment alone and the others on memory and segment."""
    width, weight, bias = x.shape[-1], parameters["qkv_net.weight"], parameters.get("qkv_net.bias")
    if keys is x:
        query, key, value = affine(x, weight, bias).chunk(3, dim=-1)
        return query, key, value
    of_query, of_both = (None, None) if bias is None else (bias[:width], bias[width:])
    key, value = affine(keys, weight[width:], of_both).chunk(2, dim=-1)
    return affine(x, weight[:width], of_query), key, value


def split_heads(x: Tensor, H: int) -> Float[Tensor, "B H N D"]:
    return x.unflatten(-1, (H, -1)).transpose(-2, -3)


def merge_heads(x: Tensor) -> Float[Tensor, "B N F"]:
    return x.transpose(-2, -3).flatten(-2)


def projected(
    inputs: tuple[Tensor, Tensor, Tensor],
    projections: Projections,
    H: int,
    visible: Tensor | None,
) -> list[Tensor]:
    """
    Query, key and value [B H N D] from their projections.

    What no head sees is cleared first: a NaN there would reach the gradients of the weights.
    """
    query, key, value = inputs
    if visible is not None:
        seen = visible.any(1).any(-2).unsqueeze(-1)
        key, value = key.where(seen, 0), value.where(seen, 0)
    return [
        split_heads(project(x), H)
        for x, project in zip((query, key, value), projections[:3], strict=True)
    ]
