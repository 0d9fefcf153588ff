"""
Kinds of mistakes that public threads of the last two years told and the diagnosis did not: what
must be told of each report was written before, in tests/reports/later; kernels in Triton are
written again in NumPy.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.diagnose import diagnose
from attnverify.reference import attention
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
