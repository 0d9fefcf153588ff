"""
The reasons that a run gives for kernels as users write them.

Each of the kernels in tests/sample_backends/faulty_kernels and faulty_kernels_torch is wrong in one
way (some of them in two). What a run says of it is *right* where it holds the words of its row,
*untrue* where it holds words that it must not, or names another mistake than these words, and
*vague* otherwise.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from tempfile import TemporaryDirectory

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.failures.finding import Finding
from attnverify.failures.replay import cause_again
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.search import Search, describe_found
from attnverify.verdicts.shown import shown_recipes
from attnverify.verdicts.tally import Options
from tests.support.sample_backends import load_sample

FOLDERS = ("faulty_kernels", "faulty_kernels_torch")


@dataclass(frozen=True)
class Row:
    """
    What may be said of a kernel: patterns of words, the right ones and those that would be untrue.

    also  other claims that are true of it, though they are not the reason
    """

    right: str
    untrue: str = "$^"
    also: str = "$^"
    dtype: str = "float32"
    aspect: str = "values"


SDPA, ALIBI = "scaled_dot_product_attention", "alibi_attention"
XL, LEARNED = "transformer_xl_attention", "learned_relative_attention"
BLOCKS = r"M > (16|32|64)|block|tile|split"
"""A fault of tiles is told by the length from which it shows, or by its name."""

EARLIER = "depends on the calls before"

SCORES = "product of query and key|biases|scale is|scale that|mask wrong|mask of"
"""What is none of the business of a kernel whose scores are right."""

ROWS = {
    # tiles of keys and of queries, partial results
    f"{SDPA}_output_not_rescaled": Row("rescale.* output|output.* rescale|(?=.*M > 16).*", "mask"),
    f"{SDPA}_sum_not_rescaled": Row("never rescales its sum|sum .*not rescaled", SCORES),
    f"{SDPA}_nothing_rescaled": Row("rescale|M > 16", "mask|scale is"),
    f"{SDPA}_first_tile_hidden": Row("hidden (block|tile)|first .*keys .*hidden", "no key averag"),
    f"{SDPA}_last_tile_dropped": Row("last (full )?(block|tile)|behind .* block", "scale"),
    f"{SDPA}_tail_not_masked": Row("past (its|the) end|padding|padded|tail", "scale is|mask wrong"),
    f"{SDPA}_last_tile_twice": Row("twice|M > 16|M % 16", "scale is|mask wrong"),
    f"{SDPA}_halves_averaged": Row("averaged|mean|M > (16|31)", SCORES),
    f"{SDPA}_merged_by_sums": Row("merge|maxim|M > (16|31)", "scale is|mask wrong"),
    f"{SDPA}_softmax_in_each_tile": Row(f"{BLOCKS}|rows sum", SCORES),
    f"{SDPA}_last_queries_lost": Row(
        "N % 16|N > 1[56]|tile of 16 queries|quer.* lost|rows? .*zero", SCORES
    ),
    f"{SDPA}_mask_of_first_tile": Row(
        "mask.*(block|tile|key 16)|M > 16.*mask|mask.*M > 16", "scale"
    ),
    f"{SDPA}_partly_hidden_tile_skipped": Row("visible key has no weight|tile|block", "scale"),
    f"{SDPA}_first_64_columns": Row("first 64 columns", "mask|bias"),
    f"{SDPA}_value_columns_lost": Row("key's width|query's width|E > D|D < E", SCORES),
    f"{SDPA}_keys_beyond_64_lost": Row("first 64|beyond (key )?64|M > 64", "scale is"),
    # masks
    f"{SDPA}_mask_inverted": Row("True means hidden|inverted", "scale"),
    f"{SDPA}_mask_added": Row("added as ones", "-1e4"),
    f"{SDPA}_mask_multiplied": Row("multipl|filled with 0", "ignored|-1e4|1e-9"),
    f"{SDPA}_mask_without_effect": Row("ignored|1e-9|dropped", "-1e4"),
    f"{SDPA}_masked_fill_dropped": Row("ignored|1e-9|dropped", "-1e4"),
    f"{SDPA}_mask_at_minus_10000": Row("-1e4|-10000|row sees no key", "ignored", "averag"),
    f"{SDPA}_filled_with_least": Row("averag|lowest|large negative", "-1e4|ignored"),
    f"{SDPA}_empty_rows_nan": Row("NaN in (rows|an empty row)", "averag"),
    f"{SDPA}_masked_after_softmax": Row("after the softmax|rows sum to", SCORES),
    f"{SDPA}_mask_transposed": Row("transposed mask|mask .*transposed", "ignored"),
    f"{SDPA}_mask_of_first_head": Row("head 0|first (leading|head)", "ignored"),
    f"{SDPA}_mask_of_first_batch": Row("first (leading|batch)", "ignored|head"),
    f"{SDPA}_mask_of_first_query": Row("first (row|query)", "ignored"),
    f"{SDPA}_float_mask_as_boolean": Row("taken as boolean|truth values", "ignored"),
    f"{SDPA}_float_mask_before_the_scale": Row("scaled with the score", "ignored"),
    f"{SDPA}_float_mask_forgotten": Row("float masks? (is )?ignored", "-1e4"),
    f"{SDPA}_always_causal": Row("top-left causal mask|causal mask", "dropped"),
    f"{SDPA}_last_key_off_by_one": Row("last key left out", "scale"),
    "softmax_of_empty_rows_is_uniform": Row("averag|average", "ignored"),
    "softmax_over_the_queries": Row("over the queries|over axis", "mask"),
    "softmax_without_maximum": Row("without (subtracting )?the maximum|score exceeds", "mask"),
    "causal_mask_strict": Row("own key", dtype="bool"),
    "causal_mask_top_left": Row("top-left|at the starts", dtype="bool"),
    # scale and dropout
    f"{SDPA}_unscaled": Row("not scaled|no scale", "mask|bias"),
    f"{SDPA}_scaled_twice": Row("1/D|twice", "mask|bias"),
    f"{SDPA}_scaled_by_value_width": Row("value width|width of the value", "mask|bias"),
    f"{SDPA}_scaled_by_all_heads": Row(r"H D|H\^-0.5", "mask|bias"),
    f"{SDPA}_scaled_by_keys": Row(r"sqrt\(M\)|number of keys", "mask|bias"),
    f"{SDPA}_scaled_up": Row(r"multiplied by sqrt\(D\)", "mask|bias"),
    f"{SDPA}_log2e_rounded": Row("1.44|0.19% low|exponent", "mask|bias"),
    f"{SDPA}_epsilon_in_the_sum": Row("rows sum to|normaliser|epsilon|plus 0?.?1?e?-?", SCORES),
    f"{SDPA}_dropout_unscaled": Row("kept weights that are not scaled", "mask"),
    f"{SDPA}_dropout_divided_by_p": Row("scaled by 1/p", "mask"),
    f"{SDPA}_dropout_inverted": Row("True means dropped", "scale is"),
    f"{SDPA}_dropout_before_the_softmax": Row("dropout .*before|scores dropped", "scale is"),
    f"{SDPA}_dropout_renormalised": Row("dropped keys hidden|renormalised", "scale is"),
    f"{SDPA}_dropout_ignored": Row("dropout ignored|draw that nobody", "scale is"),
    "additive_attention_scaled": Row("scale of a product|scaled by|scale is", "tanh"),
    "additive_attention_tanh_last": Row("tanh", "scale of"),
    # layout and heads
    f"{SDPA}_positions_before_heads": Row(r"\[B N H D\]|N == H|H == N", "scale"),
    f"{SDPA}_viewed_for_transposed": Row("reshaped into each other", "scale is"),
    f"{SDPA}_strides_of_key_forgotten": Row("key is|key read|key .*contiguous|strided", "scale is"),
    f"{SDPA}_keys_of_first_head": Row("first head's key", "scale is"),
    f"{SDPA}_values_of_first_batch": Row("first batch element's value", "scale is"),
    f"{SDPA}_keys_of_next_head": Row("(next|another|wrong|other) head", "scale is"),
    f"{SDPA}_heads_in_pairs": Row(
        "(shared|pairs|another|wrong|group).*head|head.*group", "scale is"
    ),
    f"{SDPA}_queries_reversed": Row("reverse|backwards", "scale is"),
    # arithmetic
    f"{SDPA}_computed_in_float32": Row("float32", "mask|scores", dtype="float64"),
    f"{SDPA}_computed_in_float16": Row("float16", "mask"),
    f"{SDPA}_tf32": Row("TF32|tf32", "mask|bfloat16"),
    f"{SDPA}_weights_in_bfloat16": Row("weights in bfloat16|weights rounded to bfloat16", SCORES),
    f"{SDPA}_weights_in_float16": Row("weights (in|rounded to) float16", "bfloat16"),
    f"{SDPA}_output_in_float16": Row("output.* float16", "bfloat16"),
    f"{SDPA}_zero_times_nan": Row("0 times NaN|weight of 0", "scale", aspect="hidden NaN"),
    # two mistakes at once
    f"{SDPA}_unscaled_and_zero_times_nan": Row(
        "(?=.*not scaled).*0 times NaN", "mask wrong", aspect="hidden NaN"
    ),
    f"{SDPA}_inverted_and_unscaled": Row("(?=.*not scaled).*True means hidden", "float16"),
    f"{SDPA}_unscaled_and_output_not_rescaled": Row(
        "(?=.*not scaled).*output that is not rescaled", "mask wrong"
    ),
    f"{SDPA}_unscaled_or_inverted": Row(
        "(?=.*not scaled).*True means hidden", "dropout ignored", also="True means hidden"
    ),
    f"{SDPA}_unscaled_when_masked": Row("not scaled.* when .*mask|when .*mask.*not scaled"),
    f"{SDPA}_dropout_unscaled_or_noise": Row("kept weights that are not scaled.*when .*dropout"),
    # ALiBi and relative positions
    f"{ALIBI}_plain_series": Row("plain geometric series", "mask"),
    f"{ALIBI}_slopes_from_zero": Row("begin at 1|factor of|slope", "mask"),
    f"{ALIBI}_bias_with_wrong_sign": Row("grows with the distance|other sign", "mask"),
    f"{ALIBI}_without_bias": Row("no ALiBi bias", "mask"),
    f"{ALIBI}_bias_before_the_scale": Row("scaled with the scores|inside the scale", "mask"),
    f"{ALIBI}_slopes_reversed": Row("reverse order|ascending", "mask"),
    f"{ALIBI}_one_slope_for_all": Row("head 0's slope", "mask"),
    f"{ALIBI}_bias_squared": Row("squared distances", "mask"),
    f"{ALIBI}_top_left": Row("top-left|at the starts", "slope"),
    f"{ALIBI}_own_key_hidden": Row("own key", "slope"),
    f"{ALIBI}_one_key_beyond": Row("one key (beyond|ahead)", "slope"),
    f"{ALIBI}_mask_instead_of_frontier": Row("in place of the causal|where another is", "slope"),
    f"{ALIBI}_tf32": Row("TF32|tf32", "mask|bfloat16|bias"),
    f"{ALIBI}_float32_in_float64": Row("float32", "bias|slope|mask", dtype="float64"),
    "get_slopes_closest_power": Row("closest|nearest power|next power", "begin at 1"),
    "get_slopes_from_zero": Row("begin at 1|factor of|from 0", "plain"),
    f"{XL}_not_shifted": Row("not shifted", "mask"),
    f"{XL}_u_for_v": Row("u and v exchanged", "mask"),
    f"{XL}_positions_not_scaled": Row("position scores that are not scaled", "mask"),
    f"{XL}_positions_reversed": Row("smallest distance|reverse", "mask"),
    f"{LEARNED}_table_mirrored": Row("read at i - j|future's rows", "mask"),
    f"{LEARNED}_one_row_on": Row("one row on", "mask"),
    f"{LEARNED}_always_at_the_start": Row("aligned at the start", "mask"),
    f"{LEARNED}_without_query_bias": Row("query_pos_bias|query's bias", "mask"),
    "update_mems_keeps_all": Row("mem_len 0|everything kept|mem_len=0", "window"),
    "update_mems_segment_first": Row("behind the present|present in front|segment first", "short"),
    "sinusoidal_positions_alternating": Row("in turn|alternat", "width"),
    "get_alibi_biases_from_zero": Row("constant per row", "slope", dtype="float64"),
    "get_alibi_biases_to_the_last_key": Row("constant per row", "slope", dtype="float64"),
    # state
    f"{SDPA}_mask_cached_by_keys": Row(EARLIER, "mask of|ignored"),
    f"{SDPA}_output_accumulated": Row(EARLIER, "scale"),
    # gradients
    f"{SDPA}_grad_query_not_scaled": Row(
        "query whose gradient is not scaled", aspect="gradients", also="the gradient by query"
    ),
    f"{SDPA}_grad_not_scaled": Row("not scaled|no scale", "row mean", aspect="gradients"),
    f"{SDPA}_grad_without_delta": Row("no row mean|delta", aspect="gradients"),
    f"{SDPA}_grad_delta_of_other_rows": Row("row mean|delta|over the queries", aspect="gradients"),
    f"{SDPA}_grad_without_dropout": Row("draw|dropout", aspect="gradients"),
    f"{SDPA}_grad_value_without_dropout": Row("forgets the draw", aspect="gradients"),
    f"{SDPA}_grad_value_without_mask": Row("by value.*mask|mask.*by value", aspect="gradients"),
    f"{SDPA}_grad_mask_not_summed": Row("not summed", aspect="gradients"),
    f"{SDPA}_grad_key_of_last_tile_lost": Row(
        "by key.*(16|tile)|M % 16|M > 16", aspect="gradients"
    ),
    # PyTorch
    f"{SDPA}_softmax_of_dim_1": Row("over (the heads|axis 1)", "mask"),
    f"{SDPA}_hidden_means_true": Row("True means hidden", "scale"),
    f"{SDPA}_is_causal": Row("top-left causal mask", "scale"),
    f"{SDPA}_weights_detached": Row("no gradient.*(weights|query)", "scale", aspect="gradients"),
    f"{SDPA}_key_detached": Row("no gradient.*key|key.*no gradient", "scale", aspect="gradients"),
}


RECOGNISED: dict[str, tuple[str, ...]] = {
    "arithmetic narrower than the dtype": ("_computed_in_float32", "_float32_in_float64"),
    "weights rounded to a narrow format": ("_weights_in_bfloat16", "_weights_in_float16"),
    "TF32": (f"{SDPA}_tf32", f"{ALIBI}_tf32"),
    "a weight of 0 times NaN": (f"{SDPA}_zero_times_nan", f"{SDPA}_unscaled_and_zero_times_nan"),
    "a constant per row in ALiBi biases": (
        "get_alibi_biases_from_zero",
        "get_alibi_biases_to_the_last_key",
    ),
    "permuted axes": ("_positions_before_heads", "_mask_transposed", "_strides_of_key_forgotten"),
    "sum or accumulator not rescaled": ("_sum_not_rescaled", "_output_not_rescaled"),
    "partial results merged wrongly": ("_halves_averaged", "_merged_by_sums"),
    "last tile unmasked or dropped": ("_tail_not_masked", "_last_tile_dropped"),
    "off by one in causality and alignment": ("causal_mask_strict", "_one_key_beyond"),
    "head or batch index wrong": ("_keys_of_next_head", "_values_of_first_batch"),
    "mask inverted, added, multiplied, at a sentinel": (
        "_mask_inverted",
        "_mask_added",
        "_mask_multiplied",
        "_mask_at_minus_10000",
    ),
    "scale missing, twice, by another width": (
        f"{SDPA}_unscaled",
        "_scaled_twice",
        "_scaled_by_value_width",
    ),
    "dropout scale": (f"{SDPA}_dropout_unscaled", "_dropout_divided_by_p"),
    "gradient terms missing": (
        "_grad_without_delta",
        "_grad_value_without_mask",
        "_grad_query_not_scaled",
        "_grad_mask_not_summed",
    ),
    "state left from a call before": (f"{SDPA}_mask_cached_by_keys", "_output_accumulated"),
}
"""What must be recognised, each with at least two kernels, by the ends of their names."""


def kernels_of(ends: Sequence[str]) -> list[str]:
    return [name for name in ROWS if name.endswith(tuple(ends))]


SOME = (
    f"{SDPA}_mask_inverted",
    f"{SDPA}_empty_rows_nan",
    f"{SDPA}_grad_without_delta",
    f"{ALIBI}_without_bias",
    "causal_mask_top_left",
)
"""They are asked at each commit, and all of them before a release."""

RIGHT, UNTRUE = 0.9, 0
"""At least this share is right, and at most so many are untrue."""


@lru_cache
def kernel(name: str) -> Implementation:
    """One of the kernels; for gradients what computes them, itself or its autograd."""
    if ROWS[name].aspect == "gradients" and f"{SDPA}_grad" not in name:
        name = name.replace(SDPA, f"{SDPA}_grad")
    found = [i for folder in FOLDERS for i in load_sample(folder).implementations if i.name == name]
    return found[0]


@lru_cache
def findings(name: str) -> tuple[Finding, ...]:
    """What a run of the quick profile finds in a kernel."""
    row, implementation = ROWS[name], kernel(name)
    kind = "nan" if row.aspect == "hidden NaN" else "any"
    cell = Cell(implementation, None, row.dtype, row.aspect)
    with TemporaryDirectory() as folder:
        options = Options("quick", failures=folder)
        search = Search(implementation, row.dtype, options)
        shown = shown_recipes(implementation, row.aspect, options, kind, 20)
        for recipe in shown.at_first + shown.drawn:
            search.judge(recipe)
        return tuple(describe_found(search, cell, kind, 20))


def reason(finding: Finding) -> str:
    """What the reader is told: the kind of failure, where it shows, its cause, what else it is."""
    told = f"{finding.symptom}; {finding.cause}" if finding.cause else finding.symptom
    return "; ".join((told, *finding.message.splitlines()[1:][-1:], *finding.notes))


def grade(row: Row, told: Sequence[Finding]) -> str:
    """The worst thing that is said of it counts, and then the best."""
    grades = [grade_one(row, finding) for finding in told]
    return next((g for g in ("untrue", "right") if g in grades), "vague")


def grade_one(row: Row, finding: Finding) -> str:
    words = reason(finding)
    if re.search(row.untrue, str(finding.cause)):
        return "untrue"
    if re.search(row.right, words):
        return "right"
    claims = finding.cause is not None and finding.cause.explanations
    return "untrue" if claims and not re.search(row.also, words) else "vague"


def test_every_faulty_kernel_has_a_row() -> None:
    own = {i.name for folder in FOLDERS for i in load_sample(folder).implementations if i.how}
    assert len(ROWS) >= 80 and set(ROWS) <= own


@pytest.mark.parametrize("name", SOME)
def test_the_reason_is_right(name: str) -> None:
    told = findings(name)
    assert grade(ROWS[name], told) == "right", [reason(finding) for finding in told]


REPLAYED = (
    *SOME[:3],
    f"{SDPA}_unscaled_and_zero_times_nan",
    pytest.param(None, marks=pytest.mark.thorough),
)


def without_share(cause: Cause | None) -> str:
    return re.sub(r" \([\d.e-]+x of the bound\)", "", str(cause))


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replay_tells_the_cause_that_the_run_told(name: str | None) -> None:
    """Its share of the bound is that of the record's cases, the run's of all that it has drawn."""
    told = [(n, finding) for n in ([name] if name else ROWS) for finding in findings(n)]
    again = {
        (n, f.kind): [without_share(c) for c in (f.cause, cause_again(f.record, kernel(n), f.kind))]
        for n, f in told
        if f.record
    }
    assert again and {key: both for key, both in again.items() if both[0] != both[1]} == {}


@pytest.mark.thorough
def test_most_reasons_are_right() -> None:
    grades = Counter(grade(row, findings(name)) for name, row in ROWS.items())
    assert grades["right"] >= RIGHT * len(ROWS) and grades["untrue"] <= UNTRUE, grades


@pytest.mark.parametrize("mistake", RECOGNISED)
@pytest.mark.thorough
def test_what_must_be_recognised_is(mistake: str) -> None:
    names = kernels_of(RECOGNISED[mistake])
    told = {name: [reason(f) for f in findings(name)] for name in names}
    vague = {name: told[name] for name in names if grade(ROWS[name], findings(name)) != "right"}
    assert len(names) >= 2 and vague == {}


def test_words_that_must_not_appear_outweigh_right_ones() -> None:
    wrong = Finding("x", cause=Cause("no scale, mask wrong", (Explanation("a", "no scale"),)))
    assert grade(Row("no scale"), [wrong]) == "right"
    assert grade(Row("no scale", "mask wrong"), [wrong]) == "untrue"
    assert grade(Row("dropout"), [wrong]) == "untrue" and grade(Row("dropout"), []) == "vague"
