"""
Faults of latents that all heads share: whose part is read, what is scaled, what is a value, and
what each of the parts receives.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.conventions.caches.latents import as_heads, changed, one_group, widths
from attnverify.conventions.layer_rows import Options, with_arguments
from attnverify.conventions.references import reference_of
from attnverify.faults.registry import add_conventional, add_faults
from attnverify.faults.today.grouping import without_cap_slope
from attnverify.faults.today.options import (
    answering,
    first_of,
    hidden_times_zero,
    last_head,
    length_by,
    of_maximum,
    placed,
    sent_by,
    sink_by,
    times,
    transposed_lse,
)
from attnverify.inputs.masks import seen_pairs

attention, gradient = reference_of("latent_attention"), reference_of("latent_attention_grad")
of_grouped = reference_of("grouped_attention_grad")
ONE, BOTH, SCALE, VALUES, SEEN, NUMBERS = (
    f"latent_attention, clause {number}" for number in (1, 2, 3, 4, 6, 7)
)
BACK = "latent_attention_grad"
back, answered = partial(with_arguments, gradient), partial(answering, attention)


def part(name: str, change: Callable[[ndarray], ndarray]) -> Any:
    """One of the four arrays, changed."""
    return changed(**{name: lambda x: change(x[name])})


def of_first_entry(x: ndarray) -> ndarray:
    return np.broadcast_to(x[:1], x.shape).copy()


def rows_before_heads(x: ndarray) -> ndarray:
    """[B N H .] read as [B H N .]."""
    return np.asarray(x.swapaxes(1, 2).reshape(x.shape))


def values_out_of_step(**x: Any) -> Any:
    """Values read from rows of both parts as if a row had E channels."""
    (B, M, E), both = x["latent"].shape, np.concatenate([x["latent"], x["key_rope"]], axis=-1)
    return as_heads(**x, value=both.reshape(B, -1)[:, : M * E].reshape(B, M, E))


def values_behind(**x: Any) -> Any:
    """The last E channels of a row of both parts for its values."""
    E, _ = widths(x)
    return as_heads(**x, value=np.concatenate([x["latent"], x["key_rope"]], axis=-1)[..., -E:])


def times_zero(name: str) -> Any:
    """0 times what stands in keys that no row of the entry sees."""

    def leaking(output: ndarray, lse: ndarray, **x: Any) -> Any:
        seen = seen_pairs(CATALOGUE["latent_attention"], x)
        hidden = np.where(np.any(seen, axis=(1, 2))[:, :, None], 0.0, x[name])
        return output + 0 * hidden.sum((1, 2))[:, None, None, None], lse

    return answered(leaking)


def by_group(change: Callable[..., Any], /, **x: Any) -> Any:
    """The gradients of one group of heads, changed, and then cut into those of its parts."""
    whole, (E, _) = one_group(x), widths(x)
    d_q, d_k, d_v, *by_sink = change(list(of_grouped(**whole)), **whole)
    d_k = d_k[:, 0]
    return d_q[..., :E], d_q[..., E:], d_k[..., :E] + d_v[:, 0], d_k[..., E:], *by_sink


def latent_of(change: Callable[[ndarray, ndarray], ndarray], /, **x: Any) -> Any:
    """What the latent receives, of what it does as the keys and as the values."""
    (_, d_k, d_v, *_), (E, _) = of_grouped(**one_group(x)), widths(x)
    found = gradient(**x)
    return *found[:2], change(d_k[:, 0, :, :E], d_v[:, 0]), *found[3:]


def half_the_heads(x: Options) -> ndarray:
    H = x["query"].shape[1]
    return (np.arange(H) < max(H // 2, 1))[:, None]


add_faults("blocks", (
    ("latent_attention_of_first_entry", "the latent of the first entry for all", "this project",
     ONE, "B > 1", part("latent", of_first_entry)),
    ("latent_attention_position_of_first_entry", "the key_rope of the first entry for all",
     "this project", ONE, "B > 1", part("key_rope", of_first_entry)),
    ("latent_attention_query_of_next_head", "the query_rope of the next head", "this project", ONE,
     "H > 1", part("query_rope", lambda q: np.roll(q, 1, axis=1))),
    ("latent_attention_position_of_first_head", "the query_rope of the first head for all",
     "aprender PR #2079", ONE, "H > 1",
     part("query_rope", lambda q: np.broadcast_to(q[:, :1], q.shape).copy())),
    ("latent_attention_rows_before_heads", "a query_rope of [B N H D] read as [B H N D]",
     "this project", ONE, "H > 1, N > 1", part("query_rope", rows_before_heads)),
    ("latent_attention_latent_rows_before_heads", "a query of [B N H E] read as [B H N E]",
     "this project", ONE, "H > 1, N > 1", part("query", rows_before_heads)),
    ("latent_attention_next_position", "the key_rope of the key behind", "this project", ONE,
     "M > 1", part("key_rope", lambda k: np.roll(k, -1, axis=1))),
    ("latent_attention_first_position", "the key_rope of the first key for all", "this project",
     ONE, "M > 1", part("key_rope", lambda k: np.broadcast_to(k[:, :1], k.shape).copy())),
    ("latent_attention_other_pairing", "a key_rope in the channels of the other pairing",
     "sglang PR #13495", ONE, "D > 2",
     part("key_rope", lambda k: np.concatenate([k[..., ::2], k[..., 1::2]], axis=-1))),
    ("latent_attention_position_twice", "the position counted twice", "this project", BOTH, "any",
     part("query_rope", lambda q: 2 * q)),
    ("latent_attention_last_channel_lost", "the last channel of the position lost", "this project",
     BOTH, "any",
     part("query_rope", lambda q: q * (np.arange(q.shape[-1]) < q.shape[-1] - 1))),
    ("latent_attention_without_latent", "the position alone scored", "this project", BOTH, "any",
     part("query", lambda q: 0 * q)),
    ("latent_attention_without_yarn", "a scale without the square of YaRN's factor",
     "mobius PR #548", SCALE, "any", changed(scale=lambda x: x["scale"] / 1.59)),
    ("latent_attention_scale_of_model", "1/sqrt(40) for every scale", "Megatron-LM #1501", SCALE,
     "any", changed(scale=lambda x: 40**-0.5)),
    ("latent_attention_scale_off", "a scale 2 % too large", "this project", SCALE, "any",
     changed(scale=lambda x: 1.02 * x["scale"])),
    ("latent_attention_values_out_of_step", "values read as if keys were as wide as they",
     "ik_llama.cpp PR #2031", VALUES, "M > 1", values_out_of_step),
    ("latent_attention_values_behind", "the last channels of a key for its values",
     "this project", VALUES, "any", values_behind),
    ("latent_attention_hidden_latent_times_zero", "0 times a hidden latent", "vllm #43961", SEEN,
     "NaN in a hidden latent", times_zero("latent")),
    ("latent_attention_hidden_position_times_zero", "0 times the position of a hidden key",
     "vllm #43961", SEEN, "NaN in a hidden position", times_zero("key_rope")),
    ("latent_attention_last_key_lost", "the last key of each length lost", "sglang #32087", SEEN,
     "lengths", placed(attention, lengths=partial(length_by, -1))),
    ("latent_attention_key_behind", "the key behind each length seen", "this project", SEEN,
     "lengths", placed(attention, lengths=partial(length_by, 1))),
    ("latent_attention_first_length", "the first entry's length for all", "this project", SEEN,
     "lengths, B > 1", placed(attention, lengths=first_of("lengths"))),
    ("latent_attention_causal_forgotten", "causality ignored", "tt-metal #48899", SEEN, "causal",
     changed(causal=lambda x: False)),
    ("latent_attention_first_offset", "the first entry's offset for all", "vllm #36580", SEEN,
     "offset, B > 1", changed(offset=first_of("offset"))),
    ("latent_attention_sink_of_next_head", "the sink of the next head", "modular #6591", NUMBERS,
     "sink, H > 1", changed(sink=sink_by(lambda sink, x: np.roll(sink, 1)))),
    ("latent_attention_sink_twice", "a sink counted by each of two splits", "cudnn-frontend #768",
     NUMBERS, "sink", changed(sink=sink_by(lambda sink, x: sink + np.log(2.0)))),
    ("latent_attention_sink_scaled", "a sink that is scaled", "this project", NUMBERS, "sink",
     changed(sink=sink_by(lambda sink, x: sink * x["scale"]))),
    ("latent_attention_cap_of_fifty", "50 for every cap", "vllm-metal #665", NUMBERS, "soft_cap",
     changed(soft_cap=lambda x: x.get("soft_cap") and 50.0)),
    ("latent_attention_transposed_lse", "an lse of [B N H] read as [B H N]",
     "vllm-xpu-kernels #479", NUMBERS, "H > 1, N > 1", answered(transposed_lse)),
    ("latent_attention_lse_of_maximum", "an lse without the number of keys", "this project",
     NUMBERS, "M > 1", answered(partial(of_maximum, attention))),
    ("latent_attention_sink_lost_in_empty_rows", "an lse of minus infinity for that of the sink",
     "flash-attention #2706", NUMBERS, "sink, rows without keys",
     answered(lambda output, lse, **x: (output, np.where((output == 0).all(-1), -np.inf, lse)))),
))  # fmt: skip
add_faults("backward", (
    (f"{BACK}_keys_alone", "what the latent receives as the values lost", "this project",
     f"{BACK}, clause 1", "any", partial(latent_of, lambda by_key, by_value: by_key)),
    (f"{BACK}_values_alone", "what the latent receives as the keys lost", "this project",
     f"{BACK}, clause 1", "any", partial(latent_of, lambda by_key, by_value: by_value)),
    (f"{BACK}_values_twice", "what the latent receives as the values added twice", "this project",
     f"{BACK}, clause 1", "any", partial(latent_of, lambda by_key,
      by_value: by_key + 2 * by_value)),
    (f"{BACK}_latent_twice", "what the latent receives counted twice", "AReno PR #496",
     f"{BACK}, clause 1", "any", partial(latent_of, lambda by_key,
      by_value: 2 * (by_key + by_value))),
    (f"{BACK}_position_of_half_the_heads", "the gradient by the position from half of the heads",
     "Megatron-LM #1699", f"{BACK}, clause 2", "H > 1",
     partial(sent_by, gradient, 3, half_the_heads)),
    (f"{BACK}_position_twice", "the gradient by the position summed twice",
     "Megatron-LM PR #6839", f"{BACK}, clause 2", "any", times(gradient, 3, lambda x: 2.0)),
    (f"{BACK}_position_of_last_head", "the gradient by the position from the last head",
     "levanter #449", f"{BACK}, clause 2", "H > 1", partial(sent_by, gradient, 3, last_head)),
    (f"{BACK}_latent_of_last_head", "the gradient by the latent from the last head",
     "levanter #449", f"{BACK}, clause 2", "H > 1", partial(sent_by, gradient, 2, last_head)),
    (f"{BACK}_mean_over_heads", "the mean over the heads in place of their sum", "prime-rl #2681",
     f"{BACK}, clause 2", "H > 1", times(gradient, 2, lambda x: 1 / x["query"].shape[1])),
    (f"{BACK}_position_missing", "a gradient of 0 by the position", "this project",
     f"{BACK}, clause 3", "any", times(gradient, 3, lambda x: 0.0)),
    (f"{BACK}_query_rope_missing", "a gradient of 0 by the query's part of the position",
     "this project", f"{BACK}, clause 3", "any", times(gradient, 1, lambda x: 0.0)),
    (f"{BACK}_position_unscaled", "a gradient by the position that is not scaled", "this project",
     f"{BACK}, clause 3", "any", times(gradient, 3, lambda x: 1 / x["scale"])),
    (f"{BACK}_scale_of_both_parts", "a backward pass scaled by 1/sqrt(E + D)", "ollama PR #13893",
     f"{BACK}, clause 3", "any", back(scale=lambda x: sum(widths(x)) ** -0.5)),
    (f"{BACK}_without_lse", "what arrives at the lse left out", "flash-attention #404",
     f"{BACK}, clause 4", "d_lse", back(d_lse=lambda x: 0 * x["d_lse"])),
    (f"{BACK}_lse_subtracted", "what arrives at the lse with the other sign", "this project",
     f"{BACK}, clause 4", "d_lse", back(d_lse=lambda x: -x["d_lse"])),
    (f"{BACK}_base_two", "what arrives at the lse times log 2", "attention-gym #200",
     f"{BACK}, clause 4", "d_lse", back(d_lse=lambda x: x["d_lse"] * float(np.log(2.0)))),
    (f"{BACK}_without_cap_slope", "a cap whose slope is left out", "this project",
     f"{BACK}, clause 4", "soft_cap", partial(by_group, without_cap_slope)),
    (f"{BACK}_sink_missing", "a gradient of 0 by the sink", "flash-attention #1973",
     f"{BACK}, clause 4", "sink", times(gradient, 4, lambda x: 0.0)),
    (f"{BACK}_sink_mean_over_batch", "the mean over the batch in place of the sum for the sink",
     "this project", f"{BACK}, clause 4", "sink, B > 1",
     times(gradient, 4, lambda x: 1 / len(x["query"]))),
    (f"{BACK}_window_ignored", "a backward pass without windows", "aiter #3158",
     f"{BACK}, clause 5", "a window", back(window=lambda x: None)),
    (f"{BACK}_causal_forgotten", "a backward pass without causality", "tt-metal #48899",
     f"{BACK}, clause 5", "causal", back(causal=lambda x: False)),
    (f"{BACK}_lengths_ignored", "a backward pass without lengths", "sgl-flash-attn #29",
     f"{BACK}, clause 5", "lengths", placed(gradient, lengths=lambda x: None)),
    (f"{BACK}_hidden_latent_times_zero", "0 times a hidden latent in the queries' gradient",
     "vllm #43961", f"{BACK}, clause 5", "NaN in a hidden latent",
     partial(hidden_times_zero, gradient, "latent")),
))  # fmt: skip
add_conventional("blocks", (
    ("latent_attention_scale_of_both_parts", "scale", "1/sqrt(E + D)", "ollama PR #13893", SCALE,
     "any"),
    ("latent_attention_scale_of_latent", "scale", "1/sqrt(E)", "this project", SCALE, "any"),
    ("latent_attention_scale_divides", "scale", "divides", "maxtext #1370", SCALE, "any"),
    ("latent_attention_unscaled", "scale", "1", "vLLM-metax PR #113", SCALE, "any"),
    ("latent_attention_latent_alone_scaled", "scale", "of the latent alone", "this project", BOTH,
     "any"),
    ("latent_attention_without_position", "position", "left out", "this project", BOTH, "any"),
    ("latent_attention_position_in_front", "values", "position in front", "llama.cpp PR #12801",
     VALUES, "any"),
    ("latent_attention_top_left", "alignment", "starts", "sparkinfer #3", SEEN,
     "causal, more keys than queries"),
    ("latent_attention_window_of_itself", "window counts", "the row's own key too",
     "transformers #39408", SEEN, "a left window"),
    ("latent_attention_two_sided_window", "window counts", "both sides", "LightLLM #1312", SEEN,
     "a left window"),
    ("latent_attention_without_window", "window counts", "nothing", "mistral.rs #2094", SEEN,
     "a window"),
    ("latent_attention_without_cap", "soft cap", "none", "sglang #33915", NUMBERS, "soft_cap"),
    ("latent_attention_without_sink", "sink", "none", "modular #6591", NUMBERS, "sink"),
    ("latent_attention_lse_without_sink", "sink in the lse", "left out", "FlashMLA's lse", NUMBERS,
     "sink"),
    ("latent_attention_lse_of_base_two", "lse base", "2 returned", "pytorch #181645", NUMBERS,
     "any"),
    ("latent_attention_nan_of_empty_rows", "a row of no key", "NaN", "flashinfer #3047", NUMBERS,
     "rows without keys"),
    ("latent_attention_plus_infinity", "a row of no key", "plus infinity", "FlashMLA's lse",
     NUMBERS, "rows without keys"),
))  # fmt: skip
