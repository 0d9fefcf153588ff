"""
Projections: the parameters of every layer, how they are held to their shapes, and the products that
begin and end a layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .scores import apart
from .shapes import check, check_heads, check_parameters, pattern

Parameters = Mapping[str, Tensor]

X, X_MEM, POSITION = (
    pattern("x [B N F]"),
    pattern("x [B N F], mem? [B S F]"),
    pattern("position [M F]"),
)
CROSS, SAME = (
    pattern("query [B N F], key [B M F], value [B M F]"),
    pattern("query [B N F], key [B N F], value [B N F]"),
)
MEM = pattern("mems [B S F]")[0]


def linears(*names: str) -> str:
    return ", ".join(f"{name}.weight [F F], {name}.bias? [F]" for name in names)


LABML = ("query.linear", "key.linear", "value.linear")
SELF = pattern("w_query [K F], w_key [K F], w_value [E F]")
MULTI_HEAD = pattern(linears("q_proj", "k_proj", "v_proj", "out_proj"))
ALIBI = pattern(linears(*LABML, "output"))
TABLES = "key_pos_embeddings [2P H D], key_pos_bias [2P H], query_pos_bias [H D]"
RELATIVE = pattern(
    f"query.linear.weight [F F], key.linear.weight [F F], {linears('value.linear', 'output')}, "
    f"{TABLES}"
)
TRANSFORMER_XL = pattern(
    f"qkv_net.weight [3F F], qkv_net.bias? [3F], {linears('r_net', 'o_net')}, layer_norm.weight "
    "[F], layer_norm.bias? [F], u [H D], v [H D]"
)


def linear(x: Tensor, parameters: Parameters, name: str) -> Tensor:
    x, weight = apart(x, parameters[f"{name}.weight"])
    return F.linear(x, weight, parameters.get(f"{name}.bias"))


def split_heads(x: Tensor, H: int) -> Float[Tensor, "B H N D"]:
    return x.unflatten(-1, (H, -1)).transpose(-2, -3)


def merge_heads(x: Tensor) -> Float[Tensor, "B N F"]:
    return x.transpose(-2, -3).flatten(-2)


def projected(
    inputs: tuple[Tensor, Tensor, Tensor],
    names: Sequence[str],
    parameters: Parameters,
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
        split_heads(linear(x, parameters, name), H)
        for x, name in zip((query, key, value), names, strict=True)
    ]


def check_self(x: Any, parameters: Any) -> None:
    check(X, x)
    check_parameters(SELF, parameters, F=x.shape[-1])


def check_multi_head(query: Any, key: Any, value: Any, parameters: Any, num_heads: Any) -> None:
    check(CROSS, query, key, value)
    check_heads(query.shape[-1], num_heads)
    check_parameters(MULTI_HEAD, parameters, F=query.shape[-1])


def check_relative(query: Any, key: Any, value: Any, parameters: Any, num_heads: Any) -> None:
    check(CROSS, query, key, value)
    width = query.shape[-1]
    check_heads(width, num_heads)
    check_parameters(RELATIVE, parameters, F=width, H=num_heads, D=width // num_heads)


def check_alibi(query: Any, key: Any, value: Any, parameters: Any, num_heads: Any) -> None:
    check(SAME, query, key, value)
    check_heads(query.shape[-1], num_heads)
    check_parameters(ALIBI, parameters, F=query.shape[-1])


def check_xl_layer(
    x: Any, position: Any, parameters: Any, num_heads: Any, mem: Any, eps: Any
) -> None:
    check(X_MEM, x, mem)
    width, S = x.shape[-1], 0 if mem is None else mem.shape[1]
    check(POSITION, position, M=S + x.shape[1], F=width)
    check_heads(width, num_heads)
    check_parameters(TRANSFORMER_XL, parameters, F=width, H=num_heads, D=width // num_heads)
    if not (isinstance(eps, (int, float)) and eps >= 0):
        raise ValueError(f"eps: wanted a number of at least 0, got {eps!r}")


def query_key_value(
    x: Tensor, keys: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv_net, its first third on the segment alone and the others on memory and segment."""
    width, weight, bias = x.shape[-1], parameters["qkv_net.weight"], parameters.get("qkv_net.bias")
    if keys is x:
        query, key, value = linear(x, parameters, "qkv_net").chunk(3, dim=-1)
        return query, key, value
    of_query, of_both = (None, None) if bias is None else (bias[:width], bias[width:])
    (keys, for_both), (x, for_query) = apart(keys, weight[width:]), apart(x, weight[:width])
    key, value = F.linear(keys, for_both, of_both).chunk(2, dim=-1)
    return F.linear(x, for_query, of_query), key, value
