"""Layers, their parameters by name, and the memory between segments."""

from collections.abc import Mapping
from typing import Any

from attnverify.contract.arguments import (
    check_draw,
    check_eps,
    check_heads,
    check_integer,
    check_list,
    check_options,
    check_sizes,
)
from attnverify.contract.arrays import Arrays
from attnverify.contract.masks import check_square
from attnverify.contract.shapes import Pattern, check, check_parameters, pattern


def linears(*names: str) -> str:
    """Projections from F to F, with a bias that may be absent."""
    return ", ".join(f"{name}.weight [F F], {name}.bias? [F]" for name in names)


SELF_ATTENTION = "w_query [K F], w_key [K F], w_value [E F]"
MULTI_HEAD = linears("q_proj", "k_proj", "v_proj", "out_proj")
ALIBI = linears("query.linear", "key.linear", "value.linear", "output")
RELATIVE = (
    f"query.linear.weight [F F], key.linear.weight [F F], {linears('value.linear', 'output')}, "
    "key_pos_embeddings [2P H D], key_pos_bias [2P H], query_pos_bias [H D]"
)
TRANSFORMER_XL = (
    f"qkv_net.weight [3F F], qkv_net.bias? [3F], {linears('r_net', 'o_net')}, "
    "layer_norm.weight [F], layer_norm.bias? [F], u [H D], v [H D]"
)
FEED_FORWARD = (
    "ff_in.weight [I F], ff_in.bias? [I], ff_out.weight [F I], ff_out.bias? [F], "
    "ff_norm.weight [F], ff_norm.bias? [F]"
)
"""The parameters of each layer: the catalogue reads them too."""

X, POSITION = pattern("x [B N F]"), pattern("position [M F]")
CROSS = pattern("query [B N F], key [B M F], value [B M F]")
ALIKE = pattern("query [B N F], key [B N F], value [B N F]")
MEM, HID = pattern("mems [B S F]")[0], pattern("hids [B N F]")[0]
X_MEM = pattern("x [B N F], mem? [B S F]")
D_X, D_SELF = pattern("d_output [B N F]"), pattern("d_output [B N E]")
D_MULTI_HEAD = pattern("d_output [B N F], d_weights [B H N M]")
OF_SELF, OF_MULTI_HEAD, OF_ALIBI = pattern(SELF_ATTENTION), pattern(MULTI_HEAD), pattern(ALIBI)
OF_RELATIVE, OF_XL = pattern(RELATIVE), pattern(TRANSFORMER_XL)
OF_XL_AND_FEED_FORWARD = OF_XL + pattern(FEED_FORWARD)


def check_self_attention(
    arrays: Arrays, x: Any, parameters: Any, mask: Any, keep: Any, p: Any
) -> dict[str, Any]:
    """Hold x, the three weights and the options to their sizes; returns all letters, E too."""
    at = check(arrays, X, x)
    check_parameters(arrays, OF_SELF, parameters, F=at["F"])
    check_options(arrays, mask, keep, p, (at["B"], at["N"], at["N"]))
    return at | {"E": parameters["w_value"].shape[0]}


def check_projected(
    arrays: Arrays,
    inputs: tuple[Any, Any, Any],
    parameters: Any,
    num_heads: Any,
    wanted: Pattern = OF_MULTI_HEAD,
    axes: Pattern = CROSS,
) -> dict[str, Any]:
    """Hold a layer's query, key and value, its heads and its parameters to their sizes."""
    at = check(arrays, axes, *inputs)
    F = at["F"]
    check_heads(arrays, F, num_heads)
    check_parameters(arrays, wanted, parameters, F=F, H=num_heads, D=F // num_heads)
    return at | {"H": num_heads}


def check_multi_head(
    arrays: Arrays, inputs: tuple[Any, Any, Any], parameters: Any, num_heads: Any, keep: Any, p: Any
) -> dict[str, Any]:
    """Hold a layer's inputs, its parameters and a draw to their sizes."""
    at = check_projected(arrays, inputs, parameters, num_heads)
    check_draw(arrays, keep, p, (at["B"], num_heads, at["N"], at["M"]))
    return at


def check_relative(
    arrays: Arrays, inputs: tuple[Any, Any, Any], parameters: Any, num_heads: Any, keep: Any, p: Any
) -> dict[str, Any]:
    """Hold the same; the alignment and what is visible are checked where they are attended by."""
    at = check_projected(arrays, inputs, parameters, num_heads, OF_RELATIVE)
    check_draw(arrays, keep, p, (at["B"], num_heads, at["N"], at["M"]))
    return at


def check_alibi(
    arrays: Arrays,
    inputs: tuple[Any, Any, Any],
    parameters: Any,
    num_heads: Any,
    visible: Any,
    keep: Any,
    p: Any,
) -> dict[str, Any]:
    """Hold the same, and what is visible to a square."""
    at = check_projected(arrays, inputs, parameters, num_heads, OF_ALIBI, ALIKE)
    check_square(arrays, visible, at["N"])
    check_draw(arrays, keep, p, (at["B"], num_heads, at["N"], at["N"]))
    return at


def check_xl_inputs(arrays: Arrays, x: Any, position: Any, mem: Any) -> dict[str, Any]:
    """Hold a segment, its memory and the positions of both to each other; returns M too."""
    at = check(arrays, X_MEM, x, mem)
    at["M"] = at.get("S", 0) + at["N"]
    check(arrays, POSITION, position, M=at["M"], F=at["F"])
    return at


def check_xl_layer(
    arrays: Arrays, x: Any, position: Any, parameters: Any, num_heads: Any, mem: Any, eps: Any
) -> dict[str, Any]:
    """Hold a layer to its sizes; one parameter of the feed-forward asks for all of these."""
    at = check_xl_inputs(arrays, x, position, mem)
    F = at["F"]
    check_heads(arrays, F, num_heads)
    names = parameters if isinstance(parameters, Mapping) else ()
    feeds = any(str(name).startswith("ff_") for name in names)
    wanted = OF_XL_AND_FEED_FORWARD if feeds else OF_XL
    check_parameters(arrays, wanted, parameters, F=F, H=num_heads, D=F // num_heads)
    check_eps(eps)
    return at | {"H": num_heads}


def check_xl_stack(arrays: Arrays, x: Any, parameters: Any, mems: Any) -> dict[str, Any]:
    """Hold a segment, the list of layers and the list of memories to each other; returns M too."""
    at = check(arrays, X, x)
    check_list(arrays, "parameters", parameters)
    if mems is not None:
        check_list(arrays, "mems", mems, len(parameters))
        at = check(arrays, (*X, *named("mems", MEM, len(mems))), x, *mems)
    return at | {"M": at.get("S", 0) + at["N"]}


def named(name: str, axes: Any, length: int) -> Pattern:
    """A pattern of a list: its entries are called name.0, name.1, ..."""
    return tuple(axes._replace(name=f"{name}.{layer}") for layer in range(length))


def check_init_mems(arrays: Arrays, n_layers: Any, mem_len: Any, batch: Any, width: Any) -> None:
    """Hold four sizes to integers; a memory of length 0 is none."""
    check_integer(arrays, "mem_len", mem_len, least=0)
    check_sizes(arrays, n_layers=n_layers, batch=batch, width=width)


def check_update_mems(arrays: Arrays, hids: Any, mems: Any, mem_len: Any) -> None:
    """Hold each layer's hidden states to its own memory; layers may differ in width."""
    check_integer(arrays, "mem_len", mem_len, least=0)
    check_list(arrays, "hids", hids)
    of_hids = named("hids", HID, len(hids))
    if mems is None:
        for axes, hid in zip(of_hids, hids, strict=True):
            check(arrays, (axes,), hid)
        return
    check_list(arrays, "mems", mems, len(hids))
    for *both, hid, mem in zip(of_hids, named("mems", MEM, len(mems)), hids, mems, strict=True):
        check(arrays, tuple(both), hid, mem)


def check_memory_gradients(arrays: Arrays, d_new_mems: Any, new_mems: Any) -> None:
    """Hold what arrives at a new memory to its number of layers and its shapes."""
    if new_mems is None:
        if d_new_mems is not None:
            raise ValueError(f"d_new_mems: wanted None, got {arrays.describe(d_new_mems)}")
        return
    check_list(arrays, "d_new_mems", d_new_mems, len(new_mems))
    of_each = named("d_new_mems", MEM, len(new_mems))
    for axes, gradient, mem in zip(of_each, d_new_mems, new_mems, strict=True):
        check(arrays, (axes,), gradient, **dict(zip("BSF", mem.shape, strict=True)))
