"""
Mistakes inside a layer: what becomes of a row that sees no key, whose padding a head reads, which
residual the feed-forward is added to; and in its parameters.

Mistakes with the parameters of a layer: one read in place of another, a weight read [in out] where
it is [out in], one that is never read or a bias that is added twice.

Which parameters a layer has is read off a few draws: those of a feed-forward are in some alone.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis.layers.in_stages import in_stages
from attnverify.inputs.recipe import Inputs
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.reference import attention, layers

Changed = Callable[[dict[str, Any]], dict[str, Any]]
DRAWS, SEED = 12, 0
READ_FOR = "{one} read in place of {other}, which is never read"
RANKS = (2, 4)
SHARDS = "{name}: the first of {ranks} shards of its {places} on every rank, the others never read"
OWN_COLUMNS = "each head projected from its own columns of the input alone: {names}"


def parameter_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each, for a layer; none for its gradient."""
    if "parameters" not in operation.arguments or operation.is_gradient:
        return
    shapes = parameter_shapes(operation.name)
    parts = list(dict.fromkeys(name.rpartition(".")[0] for name in shapes if "." in name))
    matrices = [part for part in parts if len(shapes.get(f"{part}.weight", ())) == 2]
    for one, other in permutations(parts, 2):
        if shapes.get(f"{one}.weight") == shapes.get(f"{other}.weight"):
            words = READ_FOR.format(one=one, other=other)
            yield words, partial(with_parameters, partial(exchanged, one, other))
    for names in (*((part,) for part in matrices), matrices[:-1], matrices) if matrices else ():
        words = f"weights read transposed, [in out] for [out in]: {', '.join(names)}"
        yield words, partial(with_parameters, partial(transposed, names))
    for name in matrices:
        for (axis, places), ranks in product(enumerate(("rows", "columns")), RANKS):
            words = SHARDS.format(name=name, ranks=ranks, places=places)
            yield words, partial(with_parameters, partial(first_shard, name, axis, ranks))
    if "num_heads" in operation.arguments:
        for names in (matrices[:-1], matrices, *((name,) for name in matrices)):
            yield OWN_COLUMNS.format(names=", ".join(names)), partial(with_own_columns, names)
    for one, other in permutations((name for name in shapes if "." not in name), 2):
        if shapes[one] == shapes[other]:
            words = READ_FOR.format(one=one, other=other)
            yield words, partial(with_parameters, partial(read, one, other))
    if {"u", "v"} <= shapes.keys():
        yield (
            "u and v exchanged",
            partial(with_parameters, lambda own: own | {"u": own["v"], "v": own["u"]}),
        )
    for name, shape in shapes.items():
        if len(shape) == 1:
            is_gain = name.endswith(".weight")
            words = f"{name} never read" if is_gain else f"{name} left out"
            yield words, partial(with_parameters, partial(times, name, 0))
            if not is_gain:
                yield f"{name} added twice", partial(with_parameters, partial(times, name, 2))


@lru_cache
def parameter_shapes(operation: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter, in the first of a few draws that has it."""
    found: dict[str, tuple[int, ...]] = {}
    for recipe in draw_recipes(operation, "any", DRAWS, SEED):
        given = case_of(recipe, "float64").inputs["parameters"]
        for own in given if isinstance(given, list) else [given]:
            if not found or own.keys() - found.keys():
                found = {name: np.shape(x) for name, x in own.items()}
    return found


def with_parameters(change: Changed, operation: Operation, inputs: Inputs) -> Any:
    """Return the reference with other parameters, in every layer of a stack."""
    own = inputs["parameters"]
    new = [change(each) for each in own] if isinstance(own, list) else change(own)
    return operation.reference(**inputs | {"parameters": new})


def exchanged(one: str, other: str, own: dict[str, Any]) -> dict[str, Any]:
    """The parameters of ``other`` are those of ``one``, where there are both."""
    leaves = ("weight", "bias")
    if f"{one}.weight" not in own or f"{other}.weight" not in own:
        return own
    return own | {f"{other}.{leaf}": own.get(f"{one}.{leaf}") for leaf in leaves}


def read(one: str, other: str, own: dict[str, Any]) -> dict[str, Any]:
    return own | {other: own[one]} if own[one].shape == own[other].shape else own


def transposed(names: Sequence[str], own: dict[str, Any]) -> dict[str, Any]:
    weights: dict[str, ndarray] = {f"{name}.weight": own[f"{name}.weight"].T for name in names}
    return own | weights


def first_shard(name: str, axis: int, ranks: int, own: dict[str, Any]) -> dict[str, Any]:
    """A map (and a bias of its rows) made of its first shard, where ranks can share the axis."""
    new = {}
    for leaf in (f"{name}.weight", f"{name}.bias")[: 2 - axis]:
        whole = own.get(leaf)
        if whole is not None and whole.shape[axis] % ranks == 0:
            shard = np.split(whole, ranks, axis)[0]
            new[leaf] = np.concatenate([shard] * ranks, axis)
    return own | new


def with_own_columns(names: Sequence[str], operation: Operation, inputs: Inputs) -> Any:
    """Return the layer whose heads are split ahead of these maps, not behind them."""
    return with_parameters(partial(on_diagonal, names, inputs["num_heads"]), operation, inputs)


def on_diagonal(names: Sequence[str], H: int, own: dict[str, Any]) -> dict[str, Any]:
    """Of maps of H heads the diagonal blocks alone; several may stand in one, as rows."""
    new = {}
    for name in names:
        weight = own[f"{name}.weight"]
        rows, columns = weight.shape
        blocks = np.kron(np.eye(H), np.ones((columns // H, columns // H)))
        if rows % columns == 0 and columns % H == 0:
            new[f"{name}.weight"] = weight * np.tile(blocks, (rows // columns, 1))
    return own | new


def times(name: str, count: int, own: dict[str, Any]) -> dict[str, Any]:
    """A bias so many times; a gain to the power of it: 1 where it is never read."""
    change = np.power if name.endswith(".weight") else np.multiply
    return own | {name: change(own[name], count)} if name in own else own


EMPTY_ROWS: dict[str, Callable[[int], float]] = {
    "NaN in rows that see no key": lambda M: np.nan,
    "rows that see no key averaging all values": lambda M: 1 / M,
}
"""The weight of each of M keys in such a row, by the words for it."""


def layer_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each, for a layer whose softmax is a stage of its own."""
    if operation.chapter == "layers" and not operation.is_gradient:
        for words, weight in EMPTY_ROWS.items():
            yield words, partial(with_empty_rows, weight)
        yield from parameter_mistakes(operation)
    if operation.name in ("multi_head_attention", "multi_head_self_attention"):
        for words, places in PADDING_ORDERS.items():
            yield words, partial(with_padding_of, places)
    if operation.name in ("transformer_xl_layer", "transformer_xl"):
        yield "a feed-forward whose residual is taken ahead of the first norm", with_early_residual
    if operation.name == "transformer_xl_layer":
        for words, parts in NORMED.items():
            yield words, partial(with_norm_ahead, parts)
    if operation.name.startswith("multi_head") and not operation.is_gradient:
        yield "weights that are averaged over the heads", with_mean_weights


PADDING_ORDERS: dict[str, Callable[[ndarray, int, int], ndarray]] = {
    "a padding mask repeated head by head where the batch comes first, so that heads read another "
    "batch entry's padding": lambda i, B, H: i % B,
    "a padding mask repeated entry by entry where the heads come first, so that heads read another "
    "batch entry's padding": lambda i, B, H: (i % H * B + i // H) // H,
}
"""Which batch entry's padding each of B times H scores reads, the batch first."""


def with_padding_of(
    places: Callable[[ndarray, int, int], ndarray], operation: Operation, inputs: Inputs
) -> Any:
    """Return the layer with the padding of other batch entries."""
    padding, H = inputs.get("key_padding_mask"), inputs["num_heads"]
    if padding is None:
        return operation.reference(**inputs)
    B, M = padding.shape
    read = padding[places(np.arange(B * H), B, H)].reshape(B, H, 1, M)

    return in_stages(operation)(
        **inputs,
        merge_masks=lambda attn_mask, key_padding_mask, H: np.where(
            read, -np.inf, attention.merge_masks(attn_mask, None, H)
        ),
    )


def with_early_residual(operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with what goes into the first norm beside the feed-forward."""
    before: list[ndarray] = []

    def norm(y: ndarray, *others: Any) -> ndarray:
        before.append(y)
        return layers.layer_norm(y, *others)

    return in_stages(operation)(
        **inputs,
        norm=norm,
        feed=lambda x, parameters, eps: layers.feed_forward(
            x, parameters, eps, residual=lambda _, y: before[-1] + y
        ),
    )


NORMED = {
    "the norm ahead of the attention, x + attention(norm(x))": (0, 1, 2),
    "the norm ahead of the query alone, x + attention(norm(x), x, x)": (0,),
    "the norm ahead of query and key alone, x + attention(norm(x), norm(x), x)": (0, 1),
}
"""Which of query, key and value are projected from what is normed, not behind the attention."""


def with_norm_ahead(parts: Sequence[int], operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with its first norm in front: of the segment, and of its memory too."""
    own, function = inputs["parameters"], in_stages(operation)
    norm = own["layer_norm.weight"], own.get("layer_norm.bias"), inputs.get("eps", 1e-5)
    given = {name: inputs[name] for name in ("x", "mem") if inputs.get(name) is not None}
    normed = {name: layers.layer_norm(each, *norm) for name, each in given.items()}
    noted: list[list[ndarray]] = []

    def split(y: ndarray, H: int) -> list[ndarray]:
        noted.append(layers.three_parts(y, H))
        return [noted[0 if i in parts else -1][i] for i in range(3)]

    function(**inputs | normed, parts=split)
    return function(**inputs, parts=split, norm=lambda y, *_: y)


def with_mean_weights(operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with the mean of its weights in the place of each head's."""
    output, weights = operation.reference(**inputs)
    return output, np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)


def with_empty_rows(weight: Callable[[int], float], operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with another weight in the rows that see no key."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        own = attention.weigh(score, visible)
        sees_some = visible.any(axis=-1, keepdims=True)
        return np.where(sees_some, own, weight(visible.shape[-1]))

    return in_stages(operation)(**inputs, weigh=weigh)
