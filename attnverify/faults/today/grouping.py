"""Faults of attention today: heads that share, caps, sinks, windows, and what an lse sends."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.grouping import changed
from attnverify.conventions.layer_rows import Options, with_arguments
from attnverify.conventions.references import reference_of
from attnverify.conventions.visibility import hidden_but
from attnverify.faults.registry import add_conventional, add_faults
from attnverify.faults.today.options import (
    answering,
    length_by,
    over_heads,
    placed,
    receiving,
    sink_by,
    sink_receiving,
    transposed_lse,
)

attention, gradient = reference_of("grouped_attention"), reference_of("grouped_attention_grad")
SHARED, SCALE, CAP, SEEN, SINK, LSE, EMPTY = (
    f"grouped_attention, clause {number}" for number in range(1, 8)
)
BACK = "grouped_attention_grad"
back = partial(with_arguments, gradient)
answered, gradients = partial(answering, attention), partial(receiving, gradient)
sink_gradient = partial(sink_receiving, gradient)


def width_of(x: Options) -> int:
    return int(x["query"].shape[-1])


def scale_of(x: Options) -> float:
    given = x.get("scale")
    return float(width_of(x) ** -0.5 if given is None else given)


def window_by(change: Callable[[Any, Any], Any]) -> Callable[[Options], Any]:
    """A window that is changed where there is one."""
    return lambda x: x.get("window") and change(*x["window"])


def shorter_in_decode(x: Options) -> Any:
    """The window of a single row without its oldest key."""
    left, right = x.get("window") or (None, None)
    return (left - 1, right) if left and x["query"].shape[2] == 1 else x.get("window")


def without_first_key(x: Options) -> Any:
    """The first key hidden from every row, where there is another."""
    N, M = x["query"].shape[2], x["key"].shape[2]
    return hidden_but(x.get("mask"), np.tile(np.arange(M) >= min(M - 1, 1), (N, 1)))


def next_heads(x: Options, name: str) -> ndarray:
    return np.roll(x[name], 1, axis=1)


def of_first_head(x: Options, name: str) -> ndarray:
    return np.repeat(x[name][:, :1], x[name].shape[1], axis=1)


def one_head_louder(x: Options) -> ndarray:
    """The values of the last head a twentieth larger, as a scale that is another head's."""
    factor = np.ones((x["value"].shape[1], 1, 1))
    factor[-1] = 1.05
    return x["value"] * factor


def mean_of_values(output: ndarray, lse: ndarray, **x: Any) -> Any:
    r = x["query"].shape[1] // x["key"].shape[1]
    mean = np.repeat(x["value"].mean(axis=2, keepdims=True), r, axis=1)
    return np.broadcast_to(mean, output.shape), lse


def of_maximum(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """The largest logit, the sum of the others left out."""
    sink = x.get("sink")
    score = (
        np.full(lse.shape, -np.inf) if sink is None else np.broadcast_to(sink[:, None], lse.shape)
    )
    count = attention(**x | {"query": 0 * x["query"], "sink": None, "mask": None})[1]
    return output, np.where(lse > score, np.maximum(lse - np.maximum(count, 0), score), lse)


def half_sinks_subtracted(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """The output of a kernel whose two splits each have the sink."""
    sink = x.get("sink")
    if sink is None:
        return output, lse
    twice = attention(**x | {"sink": sink + np.log(2.0)})
    return twice


def without_cap_slope(found: list[ndarray], **x: Any) -> Any:
    """The gradients by query and key as if the cap had slope 1."""
    if x.get("soft_cap") is None:
        return found
    r = x["query"].shape[1] // x["key"].shape[1]
    key = np.repeat(x["key"], r, axis=1)
    factor, cap = scale_of(x), x["soft_cap"]
    with np.errstate(all="ignore"):
        score = cap * np.tanh(x["query"] @ key.mT * factor / cap)
    mask = x.get("mask")
    added = (
        score
        if mask is None
        else np.where(mask, score, -np.inf)
        if mask.dtype == bool
        else (score + mask)
    )
    d_score = gradient(**x | {"soft_cap": None, "query": 0 * x["query"], "mask": added})[3]
    d_query = np.where(d_score[..., None] == 0, 0, d_score[..., None] * key[:, :, None]).sum(-2)
    return [d_query * factor, *found[1:]]


def of_last_head(place: int, /, found: list[ndarray], **x: Any) -> Any:
    """A gradient by keys or values that one head of the group sends alone."""
    r = x["query"].shape[1] // x["key"].shape[1]
    last = np.arange(x["query"].shape[1]) % r == r - 1
    names = ("d_output", "d_lse")
    alone = {name: np.where(last.reshape(-1, *[1] * (x[name].ndim - 2)), x[name], 0)
             for name in names}  # fmt: skip
    found[place] = gradient(**x | alone)[place]
    return found


def lse_through_empty_rows(by_sink: ndarray, **x: Any) -> Any:
    """What arrives at rows that see no key kept from the sink."""
    seen = attention(**x_without(x, "sink"))[1] > -np.inf
    return gradient(**x | {"d_lse": np.where(seen, x["d_lse"], 0)})[-1]


def x_without(x: Options, *names: str) -> Options:
    return {name: v for name, v in x.items() if name not in (*names, "d_output", "d_lse")}


add_faults("softmax", (
    ("grouped_attention_window_one_more", "a window with a key more on the left",
     "mlx #3552", SEEN, "a left window", changed(window=window_by(lambda left, right: (None
      if left is None else left + 1, right)))),
    ("grouped_attention_oldest_key_lost", "a decode step that loses its oldest key",
     "sglang #32087", SEEN, "N = 1, a left window", changed(window=shorter_in_decode)),
    ("grouped_attention_right_side_unread", "the right side of windows ignored",
     "onnxruntime/mobius #371", SEEN, "a right window",
     changed(window=window_by(lambda left, right: (left, None)))),
    ("grouped_attention_last_key_lost", "the last key of a length lost", "this project", SEEN,
     "lengths", placed(attention, lengths=partial(length_by, -1))),
    ("grouped_attention_stale_key", "the key behind a length seen", "this project", SEEN,
     "lengths < M", placed(attention, lengths=partial(length_by, 1))),
    ("grouped_attention_first_key_lost", "the first key lost", "this project", SEEN, "M > 1",
     changed(mask=without_first_key)),
    ("grouped_attention_causal_forgotten", "causality ignored", "tt-metal #48899", SEEN, "causal",
     changed(causal=lambda x: False)),
    ("grouped_attention_chunk_forgotten", "chunks ignored", "vllm #36580", SEEN, "chunk",
     changed(chunk=lambda x: None)),
    ("grouped_attention_segments_forgotten", "segments ignored", "flash-attention #1537", SEEN,
     "segments", changed(segments=lambda x: None)),
    ("grouped_attention_blocks_forgotten", "blocks ignored", "vllm #40106", SEEN,
     "blocks under causality", changed(blocks=lambda x: None)),
    ("grouped_attention_pinned_forgotten", "pinned keys that a window hides", "cactus #688", SEEN,
     "pinned keys with a window", changed(pinned=lambda x: 0)),
    ("grouped_attention_lengths_forgotten", "lengths ignored", "nano-vllm #213", SEEN, "lengths",
     placed(attention, lengths=lambda x: None)),
    ("grouped_attention_mask_forgotten", "a mask ignored beside other options",
     "transformers #39389", SEEN, "mask", changed(mask=lambda x: None)),
    ("grouped_attention_offset_forgotten", "offsets ignored", "executorch #21749", SEEN, "offset",
     changed(offset=lambda x: None)),
    ("grouped_attention_next_head", "the keys of the next group", "fla #1029", SHARED, "G > 1",
     changed(key=lambda x: next_heads(x, "key"))),
    ("grouped_attention_next_values", "the values of the next group", "vllm #40792", SHARED,
     "G > 1", changed(value=lambda x: next_heads(x, "value"))),
    ("grouped_attention_first_group", "the first group for all heads", "HipKittens #22", SHARED,
     "G > 1", changed(key=lambda x: of_first_head(x, "key"),
                      value=lambda x: of_first_head(x, "value"))),
    ("grouped_attention_value_scale_of_head", "the values of one head 5 % too large",
     "sgl-kernel-xpu #252", SHARED, "any", changed(value=one_head_louder)),
    ("grouped_attention_scale_of_next_width", "1 / sqrt(D + 1)", "ollama #13893", SCALE, "any",
     changed(scale=lambda x: (width_of(x) + 1) ** -0.5 if x.get("scale") is None
             else x["scale"])),
    ("grouped_attention_scale_off", "a scale 2 % too large", "this project", SCALE, "any",
     changed(scale=lambda x: 1.02 * scale_of(x))),
    ("grouped_attention_scale_applied_twice", "a given scale times 1 / sqrt(D)", "this project",
     SCALE, "scale", changed(scale=lambda x: x.get("scale") and x["scale"] * width_of(x) ** -0.5)),
    ("grouped_attention_cap_by_half", "a cap of half its size", "this project", CAP, "soft_cap",
     changed(soft_cap=lambda x: x.get("soft_cap") and x["soft_cap"] / 2)),
    ("grouped_attention_cap_of_fifty", "50 for every cap", "vllm-metal #665", CAP, "soft_cap",
     changed(soft_cap=lambda x: x.get("soft_cap") and 50.0)),
    ("grouped_attention_sink_twice", "a sink counted by each of two splits",
     "cudnn-frontend #768", SINK, "sink", answered(half_sinks_subtracted)),
    ("grouped_attention_sink_scaled", "a sink that is scaled as scores are", "this project", SINK,
     "sink", changed(sink=sink_by(lambda sink, x: sink * scale_of(x)))),
    ("grouped_attention_sink_of_next_head", "the sink of the next head", "modular #6591", SINK,
     "sink, H > 1", changed(sink=sink_by(lambda sink, x: np.roll(sink, 1)))),
    ("grouped_attention_sink_of_group", "one sink for a group", "this project", SINK, "sink, H > G",
     changed(sink=sink_by(lambda sink, x: np.repeat(
         sink[:: len(sink) // x["key"].shape[1]], len(sink) // x["key"].shape[1])))),
    ("grouped_attention_sink_capped", "a sink that is capped as scores are",
     "rocm-libraries #12229", SINK, "sink and soft_cap", changed(sink=sink_by(
         lambda sink, x: sink if not x.get("soft_cap")
         else x["soft_cap"] * np.tanh(sink / x["soft_cap"])))),
    ("grouped_attention_transposed_lse", "an lse of [N H] read as [H N]", "vllm-xpu-kernels #479",
     LSE, "H > 1, N > 1", answered(transposed_lse)),
    ("grouped_attention_lse_of_maximum", "a count taken from the lse", "this project", LSE,
     "M > 1", answered(of_maximum)),
    ("grouped_attention_lse_of_dropout", "an lse with the dropout in it", "this project", LSE,
     "p > 0", answered(lambda output, lse, **x: (output, lse - np.log(1 - x.get("p", 0))))),
    ("grouped_attention_zero_lse_of_empty_rows", "an lse of 0 where a row sees no key",
     "flashinfer #4484", EMPTY, "rows without keys",
     answered(lambda output, lse, **x: (output, np.where(lse == -np.inf, 0, lse)))),
    ("grouped_attention_sink_lost_in_empty_rows", "an lse of minus infinity for that of the sink",
     "flash-attention #2706", EMPTY, "sink, rows without keys",
     answered(lambda output, lse, **x: (output, np.where((output == 0).all(-1), -np.inf, lse)))),
    ("grouped_attention_mean", "the mean of all values", "this project", SEEN, "any",
     answered(mean_of_values)),
))  # fmt: skip
add_faults("backward", (
    ("grouped_attention_grad_without_lse", "what arrives at the lse left out",
     "flash-attention #404", f"{BACK}, clause 3", "d_lse", back(d_lse=lambda x: 0 * x["d_lse"])),
    ("grouped_attention_grad_lse_subtracted", "what arrives at the lse with the other sign",
     "this project", f"{BACK}, clause 3", "d_lse", back(d_lse=lambda x: -x["d_lse"])),
    ("grouped_attention_grad_base_two", "what arrives at the lse times log 2", "attention-gym #200",
     f"{BACK}, clause 3", "d_lse", back(d_lse=lambda x: x["d_lse"] * float(np.log(2.0)))),
    ("grouped_attention_grad_window_ignored", "a backward pass without windows", "aiter #3158",
     BACK, "a window", back(window=lambda x: None)),
    ("grouped_attention_grad_mask_ignored", "a backward pass without the boolean mask",
     "flash-attention #2101", BACK, "a boolean mask",
     back(mask=lambda x: x.get("mask") if x.get("mask") is None or x["mask"].dtype != bool
          else np.ones_like(x["mask"]))),
    ("grouped_attention_grad_lengths_ignored", "a backward pass without lengths",
     "sgl-flash-attn #29", BACK, "lengths", placed(gradient, lengths=lambda x: None)),
    ("grouped_attention_grad_keys_of_one_head", "the gradient by keys from one head of each group",
     "levanter #449", f"{BACK}, clause 1", "H > G", gradients(partial(of_last_head, 1))),
    ("grouped_attention_grad_values_of_one_head", "the gradient by values from one head of each "
     "group", "flash-linear-attention #384", f"{BACK}, clause 1", "H > G",
     gradients(partial(of_last_head, 2))),
    ("grouped_attention_grad_mean_over_heads", "the mean over the heads of a group",
     "prime-rl #2681", f"{BACK}, clause 1", "H > G", gradients(over_heads)),
    ("grouped_attention_grad_without_cap_slope", "a cap whose slope is left out", "this project",
     f"{BACK}, clause 2", "soft_cap", gradients(without_cap_slope)),
    ("grouped_attention_grad_sink_missing", "a gradient of 0 by the sink",
     "flash-attention #1973", BACK, "sink", sink_gradient(lambda by_sink, **x: 0 * by_sink)),
    ("grouped_attention_grad_sink_without_lse", "the sink without what arrives at the lse",
     "flash-attention #2706", f"{BACK}, clause 3", "sink", sink_gradient(lambda by_sink,
      **x: gradient(**x | {"d_lse": 0 * x["d_lse"]})[-1])),
    ("grouped_attention_grad_sink_without_delta", "the sink without what arrives at the output",
     "flash-attention #2102", BACK, "sink", sink_gradient(lambda by_sink, **x: gradient(**x
      | {"d_output": 0 * x["d_output"]})[-1])),
    ("grouped_attention_grad_sink_of_seeing_rows", "the sink without rows that see no key",
     "flash-attention #2706", f"{BACK}, clause 3", "sink, rows without keys",
     sink_gradient(lse_through_empty_rows)),
    ("grouped_attention_grad_sink_of_one_entry", "the sink's gradient of the first batch entry "
     "alone", "cudnn-frontend #405", BACK, "sink, B > 1",
     sink_gradient(lambda by_sink, **x: by_sink / len(x["query"]))),
    ("grouped_attention_grad_scale_forgotten", "a gradient by queries and keys that is not scaled",
     "this project", BACK, "any", gradients(lambda found, **x: [
         found[0] / scale_of(x), found[1] / scale_of(x), *found[2:]])),
))  # fmt: skip
add_conventional("softmax", (
    ("grouped_attention_heads_in_turn", "shared heads", "in turn", "onnx #7274", SHARED,
     "H > G > 1"),
    ("grouped_attention_top_left", "alignment", "starts", "onnx #8068", SEEN, "N other than M"),
    ("grouped_attention_window_of_itself", "window counts", "the row's own key too",
     "transformers #39408", SEEN, "a left window"),
    ("grouped_attention_two_sided_window", "window counts", "both sides", "LightLLM #1312", SEEN,
     "a left window"),
    ("grouped_attention_without_window", "window counts", "nothing", "mistral.rs #2094", SEEN,
     "a window"),
    ("grouped_attention_cap_behind_mask", "soft cap", "behind the mask", "onnx #7867", CAP,
     "soft_cap and a finite mask"),
    ("grouped_attention_without_cap", "soft cap", "none", "sglang #33915", CAP, "soft_cap"),
    ("grouped_attention_without_sink", "sink", "none", "modular #6591", SINK, "sink"),
    ("grouped_attention_lse_without_sink", "sink in the lse", "left out", "FlashMLA's lse", LSE,
     "sink"),
    ("grouped_attention_lse_of_base_two", "lse base", "2 returned", "pytorch #181645", LSE, "any"),
    ("grouped_attention_nan_of_empty_rows", "a row of no key", "NaN", "vllm #39148", EMPTY,
     "rows without keys"),
    ("grouped_attention_plus_infinity", "a row of no key", "plus infinity", "flashinfer #3943",
     EMPTY, "rows without keys"),
    ("grouped_attention_finite_empty_rows", "a row of no key", "-5e4", "flashinfer #4484", EMPTY,
     "rows without keys"),
    ("grouped_attention_scale_ignored", "a scale", "ignored", "tokenspeed #759", SCALE, "scale"),
))  # fmt: skip
