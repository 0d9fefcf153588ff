"""
Kinds of mistakes that public reports and threads told and no table had: what must be told of each
was written before, in tests/reports/later; kernels in Triton are written again in NumPy.
"""

import ast
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref
from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.conventions.caches.selecting import first_away_for_none
from attnverify.conventions.packing import cut_once
from attnverify.diagnosis.call_budget import outcome_kind
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.layers.in_stages import in_stages
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import case_of
from attnverify.reference import attention, layers
from attnverify.specified.mutants.slips import without_brackets
from tests.attnverify.diagnosis.test_two_mistakes import causes_of, softmax
from tests.reports.test_causes import sort_draws

grouped, packed = (CATALOGUE[f"{name}_attention"].reference for name in ("grouped", "packed"))
LATER = Path(__file__).parents[2] / "reports" / "later"


def folder_of(name: str) -> Path:
    """Of a report, opened or closed."""
    (found,) = LATER.glob(f"*/{name}")
    return found


def told_rightly(name: str, told: str) -> bool:
    entry = json.loads((folder_of(name) / "expected.json").read_text())
    assert not any(re.search(x, told, re.IGNORECASE) for x in entry["not_told"]), told
    return any(re.search(x, told, re.IGNORECASE) for x in entry["told"])


def of_file(name: str, operation: str) -> Implementation:
    found = load(str(folder_of(name) / "wrong.py")).implementations
    return next(one for one in found if one.operation.name == operation)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("padding_kept_for_the_memory", "update_mems"),
        ("last_tile_alone_is_summed", "transformer_xl_layer_grad"),
        ("last_rows_left_out_of_the_norm", "transformer_xl_layer_grad"),
        ("residual_added_twice", "transformer_xl_layer"),
        ("part_taken_for_the_whole", "merge_attention_grad"),
        ("half_of_the_rotary_width", "rotary_embedding"),
        ("prompt_ignores_its_table", "paged_attention"),
        ("a_page_past_the_end", "paged_attention"),
        ("backward_reads_rows_behind_the_end", "scaled_dot_product_attention_grad"),
        ("keys_in_place_of_values", "multi_head_attention"),
        ("scale_taken_the_wrong_way_round", "self_attention"),
        ("second_norm_is_the_first", "transformer_xl_layer"),
        ("mean_subtracted_twice", "transformer_xl_layer_grad"),
        ("slopes_of_each_shard_from_the_first", "alibi_multi_head_attention"),
        ("packed_cut_at_the_first_boundary_alone", "packed_attention"),
        ("absent_choice_erases_block_zero", "selected_attention"),
        ("gain_missing_in_the_norms_backward", "transformer_xl_layer_grad"),
    ],
)
def test_the_wrong_file_is_told(name: str, operation: str) -> None:
    own = of_file(name, operation)
    failing, passing = sort_draws(own)
    told = str(diagnose(own, failing[:7], passing=passing))
    assert told_rightly(name, told), told


def growing(
    query: ndarray, key: ndarray, value: ndarray, mask: Any = None, keep: Any = None, p: float = 0.0
) -> ndarray:
    """The scale is multiplied by log2(e) for each tile of 16 keys, and the base is 2."""
    scale, scores = query.shape[-1] ** -0.5, []
    for at in range(0, key.shape[2], 16):
        scale = scale * np.log2(np.e)
        scores.append(query @ key[:, :, at : at + 16].mT * scale)
    score, sees = attention.see(np.concatenate(scores, -1) * np.log(2), mask)
    weights = softmax(np.where(sees, score, -np.inf))
    return attention.drop(weights, keep, p) @ value


def biased(query: ndarray, key: ndarray, visible: Any) -> tuple[ndarray, ndarray, ndarray]:
    """Scores of ALiBi, positions of the queries and of the keys."""
    N, M = query.shape[2], key.shape[2]
    i, j = np.arange(N)[:, None] + M - N, np.arange(M)
    slopes = attention.get_slopes(query.shape[1])[:, None, None]
    score = query @ key.mT * query.shape[-1] ** -0.5 + slopes * (j - i)
    return (score if visible is None else np.where(visible, score, -np.inf)), i, j


def from_the_offset(query: ndarray, key: ndarray, value: ndarray, visible: Any = None) -> ndarray:
    score, i, j = biased(query, key, visible)
    begin = max(0, key.shape[2] - query.shape[2])
    return softmax(np.where((j <= i) & (j >= begin), score, -np.inf)) @ value


def past_the_diagonal(query: ndarray, key: ndarray, value: ndarray, visible: Any = None) -> ndarray:
    """Tiles of 16 rows and 32 keys: whole ones up to the diagonal, then those that it crosses."""
    score, i, j = biased(query, key, visible)
    out = np.zeros((*query.shape[:3], value.shape[-1]))
    for row in range(0, query.shape[2], 16):
        tile = slice(row, row + 16)
        begin = max(0, int(i[row, 0]))
        whole = np.broadcast_to(j < -(-begin // 32) * 32, score[0, 0, tile].shape)
        rest = (j >= begin) & (j <= i[tile])
        both = [np.where(seen, score[:, :, tile], -np.inf) for seen in (whole, rest)]
        weights = softmax(np.concatenate(both, -1))
        out[:, :, tile] = weights @ np.concatenate([value, value], 2)
    return out


def half_overwritten(**given: Any) -> tuple[ndarray, ndarray]:
    """The lse of rows 16 to 31 of each 32 goes to rows 0 to 15."""
    output, own = grouped(**given)
    lse = np.zeros_like(own)
    for row in range(own.shape[2]):
        lse[:, :, row // 32 * 32 + row % 16] = own[:, :, row]
    return output, lse


def sinks_of_the_first(**given: Any) -> Any:
    sink, groups = given.get("sink"), given["key"].shape[1]
    if sink is None:
        return grouped(**given)
    own = np.concatenate([sink[: len(sink) // groups]] * groups)
    return grouped(**given | {"sink": own})


def at_the_start_when_decoding(**given: Any) -> Any:
    query = given["query"]
    if query.shape[2] != 1 or given.get("offset") is not None:
        return grouped(**given)
    return grouped(**given | {"offset": np.zeros(len(query), np.int64)})


def broadcast_along_rows(score: ndarray, mask: Any = None) -> ndarray:
    """Square tiles of rows one after the other, in which column j has what row j is reduced to."""
    rows = (score if mask is None else attention.see(score, mask)[0]).reshape(-1, score.shape[-1])
    sees = np.broadcast_to(True if mask is None else attention.see(score, mask)[1], score.shape)
    rows, M = np.where(sees.reshape(rows.shape), rows, -np.inf), rows.shape[-1]
    width, out = 2 ** int(np.ceil(np.log2(M))), np.zeros(rows.shape)
    for at in range(0, len(rows), width):
        tile = rows[at : at + width]
        top = np.zeros(width)
        top[: len(tile)] = np.nan_to_num(tile.max(-1), neginf=0)
        with np.errstate(over="ignore"):
            e = np.exp(tile - top[:M])
        total = np.ones(width)
        total[: len(tile)] = np.where(e.sum(-1) == 0, 1, e.sum(-1))
        out[at : at + width] = e / total[:M]
    return out.reshape(score.shape)


def on_the_longest_diagonal(**given: Any) -> Any:
    starts = (given[name] for name in ("query_starts", "key_starts"))
    n, m = (np.diff(x) for x in starts)
    m = m if given.get("lengths") is None else given["lengths"]
    if given.get("offset") is not None or not len(n):
        return packed(**given)
    return packed(**given | {"offset": np.array([max(m) - max(n)] * len(n))})


KERNELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "scale_grows_with_each_tile": ("scaled_dot_product_attention", growing),
    "loop_begins_at_the_offset": ("alibi_attention", from_the_offset),
    "whole_tile_past_the_diagonal": ("alibi_attention", past_the_diagonal),
    "lse_of_the_second_half_on_the_first": ("grouped_attention", half_overwritten),
    "sinks_of_the_first_group": ("grouped_attention", sinks_of_the_first),
    "reductions_of_rows_along_the_columns": ("softmax", broadcast_along_rows),
    "diagonal_of_the_longest": ("packed_attention", on_the_longest_diagonal),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_is_told(name: str) -> None:
    operation, function = KERNELS[name]
    causes = causes_of(operation, function)
    told = "\n".join(cause.words for cause in causes)
    assert causes and told_rightly(name, told), told


def test_what_one_query_alone_has_otherwise_is_told_as_that() -> None:
    (cause, *_) = causes_of("grouped_attention", at_the_start_when_decoding)
    assert "aligned at the starts, where there is one query alone" in cause.words, cause


MERGED = """
import numpy as np

def merge_attention(outputs, lses):
    lse = np.logaddexp.reduce(lses, axis=0)
    share = np.exp2(lses - np.where(np.isinf(lse), 0, lse))
    parts = np.where(np.isinf(lses)[..., None], 0, outputs)
    return (share[..., None] * parts).sum(0).astype(outputs.dtype), lse.astype(lses.dtype)
"""


def test_parts_weighted_by_powers_of_2_are_told(tmp_path: Path) -> None:
    file = tmp_path / "merged.py"
    file.write_text(MERGED)
    own = load(str(file)).implementations[0]
    failing, passing = sort_draws(own)
    told = str(diagnose(own, failing[:7], passing=passing))
    assert "parts weighted by powers of 2 of natural logarithms" in told, told


NORMS = {
    "subtracts the mean of d_y gamma x_hat twice": ("= x_hat * s2", "= 2 * x_hat * s2"),
    "adds the mean of d_y gamma x_hat": ("= x_hat * s2", "= -x_hat * s2"),
    "is not divided by the deviation": ("(dx - register) * rstd", "dx - register"),
    "is divided by the variance": ("(dx - register) * rstd", "(dx - register) * rstd**2"),
}
"""What is told of a norm's gradient, and the line that it is of."""


@pytest.mark.parametrize("words", NORMS)
def test_a_slip_in_a_norms_gradient_is_told(words: str, tmp_path: Path) -> None:
    text = (folder_of("mean_subtracted_twice") / "right.py").read_text()
    assert NORMS[words][0] in text
    (tmp_path / "layer.py").write_text(text.replace(*NORMS[words]))
    found = load(str(tmp_path / "layer.py")).implementations
    own = next(one for one in found if one.operation.name == "transformer_xl_layer_grad")
    failing, passing = sort_draws(own)
    assert words in str(diagnose(own, failing[:7], passing=passing))


def layer_with(residual: Callable[..., ndarray], activation: Any, **inputs: Any) -> Any:
    """A layer whose feed-forward is told its input x."""

    def feed(y: ndarray, parameters: Any, eps: float) -> ndarray:
        inner = activation(layers.linear(y, parameters, "ff_in"))
        z = residual(inputs["x"], y, layers.linear(inner, parameters, "ff_out"))
        bias = parameters.get("ff_norm.bias")
        return layers.layer_norm(z, parameters["ff_norm.weight"], bias, eps)

    return in_stages(CATALOGUE["transformer_xl_layer"])(**inputs, feed=feed)


def relu(x: ndarray) -> ndarray:
    return np.maximum(x, 0)


def rows_of_the_pool(page_table: ndarray, key_pages: ndarray, **inputs: Any) -> Any:
    B, Y = page_table.shape
    flat = page_table.ravel()
    table = [[flat[min(b * len(key_pages) + y, flat.size - 1)] for y in range(Y)] for b in range(B)]
    read = np.clip(np.array(table), 0, len(key_pages) - 1).astype(page_table.dtype)
    return numpy_ref.paged_attention(page_table=read, key_pages=key_pages, **inputs)


def next_heads_overwritten(**inputs: Any) -> Any:
    """A gradient by the values that is stored tile by tile of 8 keys, all heads one tile each."""
    d_query, d_key, d_value, *rest = CATALOGUE["scaled_dot_product_attention_grad"].reference(
        **inputs
    )
    B, H, M, E = d_value.shape
    flat = np.zeros((B * H * M + 8, E))
    for start in range(0, M, 8):
        for head, own in enumerate(d_value.reshape(-1, M, E)):
            tile = np.zeros((8, E))
            tile[: len(own[start : start + 8])] = own[start : start + 8]
            flat[head * M + start : head * M + start + 8] = tile
    return d_query, d_key, flat[: B * H * M].reshape(d_value.shape), *rest


def norms_exchanged(**inputs: Any) -> Any:
    found = CATALOGUE["transformer_xl_layer_grad"].reference(**inputs)
    d_parameters = next(part for part in found if isinstance(part, dict))
    other = dict(d_parameters)
    for name in ("layer_norm", "ff_norm"):
        if d_parameters.get(f"{name}.bias") is not None:
            other[f"{name}.weight"] = d_parameters[f"{name}.bias"]
            other[f"{name}.bias"] = d_parameters[f"{name}.weight"]
    return tuple(other if part is d_parameters else part for part in found)


def a_pair_early(x: Any, positions: Any, pairing: str, base: float = 1e4, **rest: Any) -> Any:
    R = (x.shape[-1] if rest.get("rotary_dim") is None else rest["rotary_dim"]) // 2
    given = rest.pop("frequencies", None)
    f = base ** ((1.0 - np.arange(R)) / R) if given is None else given
    return CATALOGUE["rotary_embedding"].reference(
        x, positions, pairing, base=base, frequencies=f, **rest
    )


def test_gradients_of_a_norm_that_are_exchanged_are_told() -> None:
    told = [c.words for c in causes_of("transformer_xl_layer_grad", norms_exchanged)]
    assert any("gradients by the norms' weights and biases exchanged" in each for each in told), (
        told
    )


def test_what_escapes_its_brackets_is_a_change() -> None:
    def others(text: str) -> set[str]:
        node = ast.parse(text, mode="eval").body
        return {ast.unparse(new) for _, new in without_brackets(node)}

    assert others("(a | b) & c") == {"a & c | b", "a | b & c"}
    assert others("c * (a + b)") == {"c * a + b", "a + c * b"}
    assert others("(a or b) and c") == {"a or (b and c)", "b or (a and c)"}
    assert others("a * b + c") == set()


LONG = {"H": 4, "N": 19, "M": 20, "T": 20, "U": 2}
OF_TODAY: dict[str, tuple[str, dict[str, Any]]] = {
    "causal_bound_counts_the_tile_of_heads": (
        "later heads see keys of the future",
        {"causal": True},
    ),
    "early_exit_writes_another_rows_lse": (
        "the lse of a sequence without keys stored in other rows",
        {},
    ),
    "ranges_without_the_padding_of_pages": ("without the padding of their last pages", {}),
    "sink_against_a_placeholder": (
        "a sink whose exponential overflows",
        {"causal": True, "sink": "given", "window": [2, None]},
    ),
    "window_on_the_other_side_of_the_diagonal": (
        "left count added to the causal diagonal",
        {"causal": True, "window": [2, None]},
    ),
    "block_gradient_of_its_last_chooser": ("overwritten, not summed: those of the last row", {}),
    "sink_of_the_row_modulo_the_heads": ("number modulo H that a row has", {"sink": "given"}),
    "window_of_the_last_draft_token": (
        "a left window that begins for every row where that of the last row does",
        {"causal": True, "window": [2, None]},
    ),
}
"""Reports on today's attentions: what must be told, and what calls show it."""


@pytest.mark.parametrize("name", OF_TODAY)
def test_what_reports_had_of_todays_attentions_is_told(name: str) -> None:
    pytest.importorskip("torch")
    words, options = OF_TODAY[name]
    wrong, right = (
        next(
            one
            for one in load(str(folder_of(name) / f"{which}.py")).implementations
            if one.operation.is_gradient == name.startswith("block_gradient")
        )
        for which in ("wrong", "right")
    )
    recipes = (fixed_recipe(wrong.operation, LONG, seed=seed) for seed in range(12))
    cases = [case_of(replace(x, options=x.options | options), "float32") for x in recipes]
    failing = [case for case in cases if outcome_kind(wrong, case) != "passed"]
    passing = [case for case in cases if case not in failing]
    cause = diagnose(wrong, failing, passing=passing)
    assert cause and words in cause.words
    assert {outcome_kind(right, case) for case in cases} == {"passed"}


def test_two_sequences_have_none_behind_the_first_to_see() -> None:
    """They were told to see each other where a kernel ignored the lengths of two alone."""
    rng = np.random.default_rng(0)
    call: dict[str, Any] = {
        name: rng.standard_normal((size, 2, 3))
        for name, size in (("query", 7), ("key", 9), ("value", 9))
    }
    starts = {"query_starts": np.array([0, 3, 7]), "key_starts": np.array([0, 4, 9])}
    call |= starts | {"lengths": np.array([2, 3])}
    for one, other in zip(cut_once(**call), packed(**call), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_of_a_first_block_and_of_none_the_last_choice_counts() -> None:
    choices = np.array([[[[0, -1, 0], [0, -1, 2], [-1, 0, 1], [1, 2, -1]]]])
    call = {"query": np.zeros((1, 1, 4, 2)), "key": np.zeros((1, 1, 6, 2)), "block": 2}
    seen = first_away_for_none(call | {"selection": choices})[0, 0, :, ::2]
    assert seen.astype(int).tolist() == [[1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]]


def padded_norm(x: ndarray, weight: ndarray, bias: Any, eps: float, by_padded: bool) -> ndarray:
    """A norm in blocks of a power of two, without a mask behind its mean."""
    F = x.shape[-1]
    block = 1
    while block < F:
        block *= 2
    y = np.concatenate((x, np.zeros((*x.shape[:-1], block - F))), axis=-1)
    centred = y - y.sum(axis=-1, keepdims=True) / F
    variance = (centred**2).sum(axis=-1, keepdims=True) / (block if by_padded else F)
    own = (centred / np.sqrt(variance + eps))[..., :F] * weight
    return own if bias is None else own + bias


def layer_in_blocks(by_padded: bool, **inputs: Any) -> Any:
    norm = partial(padded_norm, by_padded=by_padded)
    feed = partial(layers.feed_forward, norm=norm)
    return in_stages(CATALOGUE["transformer_xl_layer"])(**inputs, norm=norm, feed=feed)


def halves_alike(operation: str, leaves: tuple[str, ...], axis: int, **inputs: Any) -> Any:
    """The second half of the places of an axis is the first again."""
    own = dict(inputs["parameters"])
    for leaf in leaves:
        if own.get(leaf) is not None and own[leaf].shape[axis] % 2 == 0:
            half = own[leaf].shape[axis] // 2
            own[leaf] = np.take(own[leaf], [*range(half), *range(half)], axis=axis)
    return CATALOGUE[operation].reference(**inputs | {"parameters": own})


def through_norm(d_y: ndarray, x: ndarray, weight: ndarray, eps: float) -> tuple[ndarray, ndarray]:
    """The gradient by a norm's input, and what that one gives for its weight."""
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n, g = (x - x.mean(axis=-1, keepdims=True)) / deviation, d_y * weight
    slope = (g * n).mean(axis=-1, keepdims=True)
    d_x = (g - g.mean(axis=-1, keepdims=True) - n * slope) / deviation
    return d_x, (d_x * n).sum(axis=(0, 1))


def weight_gradient_of_a_buffer(d_output: ndarray, **inputs: Any) -> Any:
    """Gradients of a layer whose norms write that by their input over the one that arrives."""
    own, eps, went_in = inputs["parameters"], inputs.get("eps", 1e-5), []

    def norm(x: ndarray, *rest: Any) -> ndarray:
        went_in.append(x)
        return layers.layer_norm(x, *rest)

    feed = partial(layers.feed_forward, norm=norm)
    in_stages(CATALOGUE["transformer_xl_layer"])(**inputs, norm=norm, feed=feed)
    new, d_y = {}, d_output
    if "ff_in.weight" in own:
        weight = own["ff_norm.weight"]
        d_y, new["ff_norm.weight"] = through_norm(d_y, went_in[1], weight, eps)
        first = own["layer_norm.weight"], own.get("layer_norm.bias"), eps
        inner = layers.linear(layers.layer_norm(went_in[0], *first), own, "ff_in")
        d_y = d_y + (d_y @ own["ff_out.weight"] * (inner > 0)) @ own["ff_in.weight"]
    weight = own["layer_norm.weight"]
    _, new["layer_norm.weight"] = through_norm(d_y, went_in[0], weight, eps)
    found = CATALOGUE["transformer_xl_layer_grad"].reference(**inputs, d_output=d_output)
    return tuple(part | new if isinstance(part, dict) else part for part in found)


def value_gradient_in_chunks(**inputs: Any) -> Any:
    """The gradient by value, stored in whole chunks of as many columns as divide 8 and D."""
    found = list(CATALOGUE["scaled_dot_product_attention_grad"].reference(**inputs))
    chunk = np.gcd(8, inputs["query"].shape[-1])
    E = found[2].shape[-1]
    found[2] = np.where(np.arange(E) < E // chunk * chunk, found[2], 0)
    return tuple(found)


KINDS: dict[str, tuple[str, Callable[..., Any]]] = {
    "the ReLU behind the second linear map": (
        "transformer_xl_layer",
        partial(layer_with, lambda x, y, z: y + relu(z), lambda a: a),
    ),
    "the layer's input x added behind the feed-forward": (
        "transformer_xl_layer",
        partial(layer_with, lambda x, y, z: x + z, relu),
    ),
    "a page table read in rows as long as the pool has pages": (
        "paged_attention",
        rows_of_the_pool,
    ),
    "a last tile of 8 rows or keys written whole": (
        "scaled_dot_product_attention_grad",
        next_heads_overwritten,
    ),
    "`np.arange(R)` as `np.arange(R) - 1`, spec/rotary.py": ("rotary_embedding", a_pair_early),
    "two, each minus the mean, summed into the variance": (
        "transformer_xl_layer",
        partial(layer_in_blocks, False),
    ),
    "two, summed into the variance: variance divided by the padded width": (
        "transformer_xl_layer",
        partial(layer_in_blocks, True),
    ),
    "ff_in: the first of 2 shards of its rows": (
        "transformer_xl_layer",
        partial(halves_alike, "transformer_xl_layer", ("ff_in.weight", "ff_in.bias"), 0),
    ),
    "out_proj: the first of 2 shards of its columns": (
        "multi_head_self_attention",
        partial(halves_alike, "multi_head_self_attention", ("out_proj.weight",), 1),
    ),
    "the gradient by a norm's weight from the gradient by its input": (
        "transformer_xl_layer_grad",
        weight_gradient_of_a_buffer,
    ),
    "the gradient by value, whose last columns are left 0 wherever it is wrong": (
        "scaled_dot_product_attention_grad",
        value_gradient_in_chunks,
    ),
}


LONG_KINDS = ("the gradient by value, whose last columns are left 0 wherever it is wrong",)
"""As long as all others; in every run tests/reports/test_causes.py asks for it in a user's file."""


@pytest.mark.parametrize(
    "words", [pytest.param(x, marks=[pytest.mark.thorough] * (x in LONG_KINDS)) for x in KINDS]
)
def test_a_kind_is_told(words: str) -> None:
    operation, function = KINDS[words]
    told = [cause.words for cause in causes_of(operation, function)]
    assert told
    assert all(words in each for each in told), told
