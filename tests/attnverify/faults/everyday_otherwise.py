"""
Everyday faults by another hand: what a kernel does wrong on a path that is taken at usual sizes,
where these are more than thresholds (multiples, products, grids, options, what stands in a row).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs, Recipe
from tests.attnverify.faults.everyday import changed

Sizes = dict[str, int]
Wrong = Callable[[Operation, Inputs, Any], Any]


@dataclass(frozen=True)
class Otherwise:
    """
    A fault of some operations: whether a call takes its path, and what it then answers.

    part  what the ordinary call must have for it: a mask of a form, a draw, an option with a value
    """

    name: str
    of: Callable[[Operation], bool]
    on: Callable[[Sizes, Recipe], bool]
    wrong: Wrong
    part: str = ""

    def is_on(self, recipe: Recipe) -> bool:
        sizes = {letter: recipe.sizes.get(letter, 1) for letter in "BCHGNMDEFASTUWYZLKQ"}
        return bool(self.on(sizes, recipe))

    def answer(self, recipe: Recipe, inputs: Inputs, right: Any) -> Any:
        op = CATALOGUE[recipe.operation]
        return self.wrong(op, inputs, right) if self.is_on(recipe) else right


def rows(change: Callable[[ndarray], ndarray], least: int = 2) -> Wrong:
    """The outputs of so many axes, changed."""
    return lambda op, given, answer: changed(answer, change, least)


def fast_path(x: ndarray) -> ndarray:
    band = np.arange(x.shape[-2]) % 128 // 32 == 2
    x[..., band, :] = np.roll(x, -1, -2)[..., band, :]
    return x


def last_block_of_the_grid(x: ndarray) -> ndarray:
    flat = x.reshape(-1, *x.shape[-2:])
    flat[-1, -64:] = flat[0, :64]
    return flat.reshape(x.shape)


def beyond_row_8000(x: ndarray) -> ndarray:
    flat = x.reshape(-1, x.shape[-1])
    flat[8000:] = 0
    return flat.reshape(x.shape)


def given_otherwise(**changes: Callable[[ndarray], ndarray]) -> Wrong:
    """The right answer of other arguments."""

    def wrong(op: Operation, given: Inputs, answer: Any) -> Any:
        new = {name: f(given[name].copy()) for name, f in changes.items() if name in given}
        return op.reference(**given | new)

    return wrong


def of_gradients(names: Callable[[str], bool], wrong: Wrong) -> Wrong:
    """The fault in some gradients alone."""

    def some(op: Operation, given: Inputs, answer: Any) -> Any:
        found = wrong(op, given, answer)
        told = [name for name in op.axes if not name.startswith("d_")]
        told = (told + ["parameters"] * len(answer))[: len(answer)]
        return tuple(y if names(n) else x for x, y, n in zip(answer, found, told, strict=True))

    return some


def stale_keys(key: ndarray) -> ndarray:
    key[..., 448:, :] = key[..., 447:448, :]
    return key


def without_rows(start: int, stop: int | None = None) -> Callable[[ndarray], ndarray]:
    def zero(x: ndarray) -> ndarray:
        x[..., start:stop, :] = 0
        return x

    return zero


def hidden(start: int, stop: int) -> Wrong:
    """These keys are hidden from all."""

    def wrong(op: Operation, given: Inputs, answer: Any) -> Any:
        M, mask = (given.get("key", given.get("query"))).shape[-2], given.get(str(op.mask))
        j = np.arange(M)
        seen = (j < start) | (j >= stop)
        if mask is None:
            mask = np.ones((1, M), bool)
        new = mask & seen if mask.dtype == bool else np.where(seen, mask, -np.inf)
        return op.reference(**given | {str(op.mask): new})

    return wrong


def mask_of_first_entry(op: Operation, given: Inputs, answer: Any) -> Any:
    mask = np.broadcast_to(given[str(op.mask)][:1], given[str(op.mask)].shape)
    return op.reference(**given | {str(op.mask): mask})


def mask_of_row_tile(op: Operation, given: Inputs, answer: Any) -> Any:
    """What a whole tile of 64 rows sees is told by its first row."""
    mask = given[str(op.mask)]
    if mask.shape[-2] == 1:
        return answer
    first = np.arange(mask.shape[-2]) // 64 * 64
    late = np.arange(mask.shape[-2])[:, None] >= 256
    return op.reference(**given | {str(op.mask): np.where(late, mask[..., first, :], mask)})


def own_key_lost(op: Operation, given: Inputs, answer: Any) -> Any:
    """Rows from 384 on do not see their own place."""
    N, M = given["query"].shape[-2], given["key"].shape[-2]
    i, j = np.arange(N)[:, None], np.arange(M)
    seen = (j != i + M - N) | (i < 384)
    mask = given.get(str(op.mask))
    mask = seen if mask is None else mask & seen if mask.dtype == bool else mask
    return op.reference(**given | {str(op.mask): mask})


def padding_ignored(op: Operation, given: Inputs, answer: Any) -> Any:
    padding = given["key_padding_mask"].copy()
    padding[:, padding.shape[-1] * 3 // 4 :] = False
    return op.reference(**given | {"key_padding_mask": padding})


def draw_of_another_tile(op: Operation, given: Inputs, answer: Any) -> Any:
    keep = given["keep"].copy()
    keep[..., 192:256] = keep[..., :64]
    return op.reference(**given | {"keep": keep})


def narrow(x: ndarray) -> ndarray:
    """As bfloat16 keeps it."""
    return np.float32(x).view(np.uint32).__and__(np.uint32(0xFFFF0000)).view(np.float32) * 1.0


def interleaved_heads(op: Operation, given: Inputs, answer: Any) -> Any:
    """Head h reads group h % G."""
    axis = 1 if "key" in given and given["key"].ndim == 4 else None
    if axis is None:
        return answer
    H, G = given["query"].shape[1], given["key"].shape[1]
    of = np.arange(H) % G
    full = {n: given[n][:, of] for n in ("key", "value", "selection") if n in given}
    found = op.reference(**given | full)
    if not op.is_gradient:
        return found
    return tuple(x if x.shape == y.shape else y for x, y in zip(found, answer, strict=True))


def long_sequences_end(op: Operation, given: Inputs, answer: Any) -> Any:
    output, lse = (x.copy() for x in answer)
    starts = given["query_starts"]
    for a, b in pairwise(starts):
        if b - a > 200:
            output[b - 32 : b] = 0
    return output, lse


def last_sequence_of_the_one_before(op: Operation, given: Inputs, answer: Any) -> Any:
    key = given["key"].copy()
    a, b = given["key_starts"][-2:]
    key[a:b] = np.roll(key, 16, 0)[a:b]
    return op.reference(**given | {"key": key})


def table_of_twenty(op: Operation, given: Inputs, answer: Any) -> Any:
    table = given["page_table"].copy()
    table[:, 20:] = table[:, 19:20]
    return op.reference(**given | {"page_table": table})


def values_beyond(op: Operation, given: Inputs, answer: Any) -> Any:
    """The values of a cache beyond 256 keys are those of the keys' pages before."""
    pages = given["value_pages"].copy()
    W = pages.shape[1]
    for named in given["page_table"][:, 256 // W :]:
        pages[named[named >= 0]] *= 0.5
    return op.reference(**given | {"value_pages": pages})


def late_rows_unturned(op: Operation, given: Inputs, answer: Any) -> Any:
    source = given["d_output"] if op.is_gradient else given["x"]

    def change(x: ndarray) -> ndarray:
        if x.ndim == 4:
            x[:, x.shape[1] // 2 :, 300:] = source[:, x.shape[1] // 2 :, 300:]
        return x

    return changed(answer, change)


def scale_of_the_row_before(op: Operation, given: Inputs, answer: Any) -> Any:
    x = answer.reshape(-1, answer.shape[-1]).copy()
    x[3000:] *= 1.01
    return x.reshape(answer.shape)


def last_part_lost(op: Operation, given: Inputs, answer: Any) -> Any:
    lses = given["lses"].copy()
    lses[-1, ..., 256:] = -np.inf
    return op.reference(**given | {"lses": lses})


def columns_damped(x: ndarray) -> ndarray:
    x[..., 256:320] *= 0.9
    return x


def oldest_memory_lost(op: Operation, given: Inputs, answer: Any) -> Any:
    def lose(x: Any) -> Any:
        x = x.copy()
        x[:, :64] = 0
        return x

    if "mem" in given:
        return op.reference(**given | {"mem": lose(given["mem"])})
    return op.reference(**given | {"mems": [lose(x) for x in given["mems"]]})


def tiles_transposed(x: ndarray) -> ndarray:
    tile = x[..., 256:320, 256:320].copy()
    x[..., 256:320, 256:320] = np.swapaxes(tile, -1, -2)
    return x


def sum_of_the_first(op: Operation, given: Inputs, answer: Any) -> Any:
    share = answer[..., :384].sum(-1, keepdims=True)
    return answer / np.where(share > 0, share, 1)


def lse_in_base_two(op: Operation, given: Inputs, answer: Any) -> Any:
    output, lse = answer[0], answer[1].copy()
    lse[..., 256:] /= log(2)
    return output, lse


def narrower_window(op: Operation, given: Inputs, answer: Any) -> Any:
    """The tile at a window's far end is not looked at."""
    left, right = given["window"]
    return op.reference(**given | {"window": (max(left - 32, 0), right)})


def sink_lost(op: Operation, given: Inputs, answer: Any) -> Any:
    return op.reference(**given | {"sink": None})


def cap_lost(op: Operation, given: Inputs, answer: Any) -> Any:
    return op.reference(**given | {"soft_cap": None})


def segments_joined(op: Operation, given: Inputs, answer: Any) -> Any:
    queries, keys = (x.copy() for x in given["segments"])
    top = max(queries.max(), keys.max())
    for x in (queries, keys):
        x[x == top] = top - 1
    return op.reference(**given | {"segments": (queries, keys)})


def some_rows_damped(op: Operation, given: Inputs, answer: Any) -> Any:
    """Rows whose query begins large: their maximum comes late, what came before is not scaled."""
    query = given.get("query", given.get("x"))

    def change(x: ndarray) -> ndarray:
        if x.shape[:-1] == query.shape[:-1]:
            x[query[..., 0] > 1.5] *= 0.95
        return x

    return changed(answer, change)


def lengths_of_the_longest(op: Operation, given: Inputs, answer: Any) -> Any:
    """Every entry has the length of the longest."""
    lengths = np.full_like(given["lengths"], given["lengths"].max())
    return op.reference(**given | {"lengths": lengths})


def has(*names: str) -> Callable[[Operation], bool]:
    return lambda op: all(name in op.arguments for name in names)


def attends(op: Operation) -> bool:
    return "query" in op.arguments or op.traits.parameters != ""


def forward(test: Callable[[Operation], bool]) -> Callable[[Operation], bool]:
    return lambda op: test(op) and not op.is_gradient


def backward(test: Callable[[Operation], bool]) -> Callable[[Operation], bool]:
    return lambda op: test(op) and op.is_gradient


def has_mask(op: Operation) -> bool:
    return bool(op.mask) and "query" in op.arguments and not op.traits.parameters


def in_heads(op: Operation) -> bool:
    return {"B", "H", "N"} <= op.sizes


GRADIENTS_OF = {"query", "key", "value", "x"}

OTHERWISE = (
    Otherwise(
        "a fast path where tiles divide",
        lambda op: "N" in op.sizes and "query" in op.arguments,
        lambda s, r: s["N"] % 64 == 0 == s["M"] % 64 and s["D"] % 64 in (0, 1) and s["N"] >= 256,
        rows(fast_path),
    ),
    Otherwise(
        "the last block of a grid of 16 heads and more",
        in_heads,
        lambda s, r: s["B"] * s["H"] > 15 and s["N"] >= 384,
        rows(last_block_of_the_grid, 3),
    ),
    Otherwise(
        "rows from the 8000th on",
        in_heads,
        lambda s, r: s["B"] * s["H"] * s["N"] > 8000 and s["D"] >= 32,
        rows(beyond_row_8000, 4),
    ),
    Otherwise(
        "rows whose maximum comes late",
        lambda op: "query" in op.arguments and "M" in op.sizes,
        lambda s, r: s["M"] > 330 and s["N"] > 64,
        some_rows_damped,
    ),
    Otherwise(
        "keys beyond 448 are the one before",
        has("key"),
        lambda s, r: s["M"] > 448,
        given_otherwise(key=stale_keys),
    ),
    Otherwise(
        "keys 96 to 127 lost in calls of 2^17 pairs",
        has_mask,
        lambda s, r: s["N"] * s["M"] > 2**17,
        hidden(96, 128),
    ),
    Otherwise(
        "d_value sums 448 queries",
        backward(has("d_output", "value")),
        lambda s, r: s["N"] > 448,
        of_gradients(lambda n: n == "value", given_otherwise(d_output=without_rows(448))),
    ),
    Otherwise(
        "d_query without the third tile of keys",
        backward(lambda op: has_mask(op) and has("query", "value")(op)),
        lambda s, r: s["M"] > 300 and s["D"] >= 64 and s["E"] >= 64,
        of_gradients(lambda n: n == "query", hidden(128, 192)),
    ),
    Otherwise(
        "d_key kept in bfloat16",
        backward(has("key")),
        lambda s, r: s["N"] * s["D"] >= 2**15,
        of_gradients(lambda n: n == "key", rows(narrow)),
    ),
    Otherwise(
        "gradients of what rows share without the last 64",
        backward(has("d_output")),
        lambda s, r: s["N"] >= 300,
        of_gradients(lambda n: n not in GRADIENTS_OF, given_otherwise(d_output=without_rows(-64))),
    ),
    Otherwise(
        "the mask of the first entry",
        has_mask,
        lambda s, r: (
            bool(r.mask)
            and r.mask["axes"].startswith("B")
            and s["B"] >= 2
            and s["N"] >= 256
            and s["M"] >= 256
        ),
        mask_of_first_entry,
        "B 1 N M bool",
    ),
    Otherwise(
        "the float mask of the first entry",
        has_mask,
        lambda s, r: (
            bool(r.mask)
            and r.mask["axes"].startswith("B")
            and r.mask["form"] != "bool"
            and s["B"] >= 2
            and s["N"] >= 256
            and s["M"] >= 256
        ),
        mask_of_first_entry,
        "B 1 N M noisy",
    ),
    Otherwise(
        "a tile of rows sees what its first row sees",
        has_mask,
        lambda s, r: (
            bool(r.mask) and r.mask["axes"].endswith("N M") and s["N"] > 320 and s["D"] >= 64
        ),
        mask_of_row_tile,
        "N M bool",
    ),
    Otherwise(
        "rows from 384 on do not see their own place",
        lambda op: has_mask(op) and has("key")(op),
        lambda s, r: (
            (
                CATALOGUE[r.operation].traits.causal
                or (bool(r.mask) and r.mask["pattern"] == "causal" and r.mask["form"] == "bool")
            )
            and s["N"] > 384
        ),
        own_key_lost,
        "N M causal",
    ),
    Otherwise(
        "padding ignored in the last quarter",
        has("key_padding_mask", "parameters"),
        lambda s, r: bool(r.padding) and s["M"] >= 300 and s["H"] >= 8,
        padding_ignored,
        "padding",
    ),
    Otherwise(
        "the draw of another tile",
        lambda op: has("keep")(op) and attends(op),
        lambda s, r: bool(r.dropout) and s["M"] >= 256 <= s["N"] and s["H"] * s["B"] >= 2,
        draw_of_another_tile,
        "dropout",
    ),
    Otherwise(
        "heads of groups interleaved",
        has("key", "sink"),
        lambda s, r: s["M"] >= 256 and s["H"] > s["G"] > 1,
        interleaved_heads,
    ),
    Otherwise(
        "the end of packed sequences beyond 200",
        forward(has("query_starts", "key_starts")),
        lambda s, r: True,
        long_sequences_end,
    ),
    Otherwise(
        "the last packed sequence's keys",
        has("query_starts", "key_starts", "key"),
        lambda s, r: s["B"] >= 3 and s["U"] >= 600,
        last_sequence_of_the_one_before,
    ),
    Otherwise(
        "page tables of twenty", has("page_table"), lambda s, r: s["Y"] > 20, table_of_twenty
    ),
    Otherwise(
        "values of a cache beyond 256",
        has("page_table"),
        lambda s, r: s["Y"] * s["W"] > 256 and s["D"] >= 64,
        values_beyond,
    ),
    Otherwise(
        "rows from 300 on unturned in half of the heads",
        has("pairing"),
        lambda s, r: s["N"] > 300 and s["H"] > 1,
        late_rows_unturned,
    ),
    Otherwise(
        "rows from 3000 on scaled otherwise",
        has("stored"),
        lambda s, r: s["N"] * int(np.prod(r.options.get("lead", []))) > 3000 and s["D"] >= 64,
        scale_of_the_row_before,
    ),
    Otherwise(
        "the last part lost in rows from 256 on",
        has("lses"),
        lambda s, r: s["C"] > 2 and s["N"] > 256,
        last_part_lost,
    ),
    Otherwise(
        "columns 256 to 319 damped",
        lambda op: bool(op.traits.parameters),
        lambda s, r: s["F"] >= 384 and max(s["N"], s["M"]) >= 200,
        rows(columns_damped, 3),
    ),
    Otherwise(
        "the oldest memory lost",
        lambda op: bool(op.traits.parameters) and bool({"mem", "mems"} & set(op.arguments)),
        lambda s, r: s["S"] >= 200 and bool(r.options.get("mems", True)) and s["F"] > 64,
        oldest_memory_lost,
    ),
    Otherwise(
        "tiles of scores transposed",
        forward(lambda op: op.is_score),
        lambda s, r: s["N"] >= 320 <= s["M"],
        rows(tiles_transposed),
    ),
    Otherwise(
        "a row's sum ends at 384",
        lambda op: op.name == "softmax",
        lambda s, r: s["M"] > 400 and s["N"] > 100,
        sum_of_the_first,
    ),
    Otherwise(
        "lse in base two from row 256 on",
        forward(has("sink", "key")),
        lambda s, r: max(s["N"], s["T"]) > 256 and s["M"] * s["U"] > 256,
        lse_in_base_two,
    ),
    Otherwise(
        "the far end of wide windows",
        has("window", "query"),
        lambda s, r: (
            bool(r.options.get("window"))
            and (r.options["window"][0] or 0) >= 64
            and max(s["M"], s["U"], s["Y"] * s["W"]) > 256
        ),
        narrower_window,
        "window",
    ),
    Otherwise(
        "the sink lost",
        has("sink", "query"),
        lambda s, r: (
            bool(r.options.get("sink"))
            and max(s["M"], s["U"], s["Y"] * s["W"]) > 256
            and s["H"] > s["G"]
        ),
        sink_lost,
        "sink",
    ),
    Otherwise(
        "the cap lost",
        has("soft_cap", "query"),
        lambda s, r: (
            bool(r.options.get("soft_cap"))
            and max(s["M"], s["U"], s["Y"] * s["W"]) > 256
            and s["D"] >= 64
        ),
        cap_lost,
        "soft_cap",
    ),
    Otherwise(
        "the last two segments joined",
        has("segments", "query"),
        lambda s, r: bool(r.options.get("segments")) and s["M"] > 256,
        segments_joined,
        "segments",
    ),
    Otherwise(
        "every entry as long as the longest",
        has("lengths", "key"),
        lambda s, r: bool(r.options.get("lengths")) and s["M"] > 256 and s["B"] > 1,
        lengths_of_the_longest,
        "lengths",
    ),
    Otherwise(
        "every entry's cache as long as the longest",
        has("page_table"),
        lambda s, r: s["Y"] * s["W"] > 256 and s["B"] > 1,
        lengths_of_the_longest,
    ),
)


# the ordinary test's own calls

USUAL = {"B": 2, "H": 8, "N": 512, "M": 512, "D": 64, "E": 64, "G": 2, "C": 4, "T": 1024, "U": 1024}
USUAL |= {"Q": 64, "K": 64, "A": 64, "P": 512, "F": 512, "W": 16, "Y": 32, "Z": 128, "S": 512}
USUAL |= {"L": 1, "R": 32}
GIVEN = {
    "window": [128, 0],
    "sink": "given",
    "soft_cap": 1.5,
    "segments": {"seed": 3},
    "lengths": {"seed": 4},
}


def ordinary_sizes(op: Operation) -> Sizes:
    if op.is_paged:
        return USUAL | {"B": 4, "T": 4}
    return (
        USUAL
        | ({"B": 4} if op.is_packed else {})
        | ({"N": 4096} if "stored" in op.arguments else {})
    )


def ordinary_call(op: Operation, part: str) -> Recipe | None:
    """Standard normal numbers as one calls it every day; None where there is no such part."""
    recipe = fixed_recipe(op, ordinary_sizes(op), "normal", seed=1000)
    if part == "padding":
        return replace(recipe, padding={"pattern": "right_padding", "seed": 6})
    if part == "dropout":
        return replace(recipe, dropout={"p": 0.25, "seed": 2})
    if part in GIVEN:
        return replace(recipe, options=recipe.options | {part: GIVEN[part]})
    return under_mask(op, recipe, part) if part else recipe


def under_mask(op: Operation, recipe: Recipe, part: str) -> Recipe | None:
    *letters, form = part.split()
    axes = " ".join(letters)
    axes = axes if axes in op.traits.mask_axes else axes.replace(" 1", "")
    if axes not in op.traits.mask_axes or (form == "noisy" and op.mask == "visible"):
        return None
    mask = {"pattern": "random", "axes": axes, "form": form, "seed": 5}
    mask |= {"pattern": "causal", "form": "bool"} if form == "causal" else {}
    return replace(recipe, mask=mask)
