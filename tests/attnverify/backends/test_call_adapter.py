"""The arguments of a user's function: what each is given, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify import numpy_ref
from attnverify.backends.calls.arguments import bind
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.declarations import Declarations, features_of
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.report.terminal_colours import fold

SDPA = CATALOGUE["scaled_dot_product_attention"]
ALIBI = CATALOGUE["alibi_attention"]
PAGED = CATALOGUE["paged_attention"]

RNG = np.random.default_rng(0)
INPUTS = {
    "query": RNG.standard_normal((2, 3, 5, 16)),
    "key": RNG.standard_normal((2, 3, 5, 16)),
    "value": RNG.standard_normal((2, 3, 5, 11)),
}
VISIBLE = RNG.random((5, 5)) < 0.6
EXPECTED = numpy_ref.scaled_dot_product_attention(**INPUTS)
MASKED = numpy_ref.scaled_dot_product_attention(**INPUTS, mask=VISIBLE)


def flash_attn(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):  # type: ignore[no-untyped-def]
    assert (dropout_p, softmax_scale, causal, window_size) == (0.0, None, False, (-1, -1))
    return numpy_ref.scaled_dot_product_attention(q, k, v)


def jax_attention(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):  # type: ignore[no-untyped-def]
    assert scale is None and not is_causal
    assert bias is None or bias.dtype == float
    assert mask is None or mask.dtype == bool
    return numpy_ref.scaled_dot_product_attention(query, key, value, bias if mask is None else mask)


def onnx_attention(Q, K, V, attn_mask=None, *, is_causal=0, scale=1.0):  # type: ignore[no-untyped-def]
    assert not is_causal
    more = scale * K.shape[-1] ** 0.5  # so that another scale shows
    return numpy_ref.scaled_dot_product_attention(Q * more, K, V, attn_mask)


def xformers_attention(query, key, value, attn_bias=None, p=0.0, scale=None):  # type: ignore[no-untyped-def]
    return numpy_ref.scaled_dot_product_attention(query, key, value, attn_bias)


LIBRARIES: list[Callable[..., Any]] = [
    flash_attn,
    jax_attention,
    onnx_attention,
    xformers_attention,
]


@pytest.mark.parametrize("function", LIBRARIES)
def test_names_of_the_common_libraries_are_known(function: Callable[..., Any]) -> None:
    adapted = adapt_signature(function, SDPA)
    assert np.array_equal(adapted(**INPUTS, mask=None, keep=None, p=0.0), EXPECTED)


@pytest.mark.parametrize("function", [jax_attention, onnx_attention])
def test_a_mask_goes_where_the_library_takes_it(function: Callable[..., Any]) -> None:
    adapted = adapt_signature(function, SDPA)
    added = np.where(VISIBLE, 0.0, -np.inf)
    assert np.array_equal(adapted(**INPUTS, mask=VISIBLE), MASKED)
    assert np.array_equal(adapted(**INPUTS, mask=added), MASKED)


@pytest.mark.parametrize(
    ("function", "given"),
    [(xformers_attention, {"mask": VISIBLE}), (flash_attn, {"keep": VISIBLE})],
    ids=["a boolean mask for a bias", "a draw that nothing takes"],
)
def test_what_no_parameter_takes_is_unsupported(
    function: Callable[..., Any], given: dict[str, Any]
) -> None:
    with pytest.raises(NotImplementedError, match=f"takes no {next(iter(given))}"):
        adapt_signature(function, SDPA)(**INPUTS, **given)


def test_what_a_function_takes_by_any_name_it_is_given_by_the_specifications() -> None:
    seen = dict[str, Any]()

    def softmax(x, **kwargs):  # type: ignore[no-untyped-def]
        seen.update(kwargs)
        return numpy_ref.softmax(x, **kwargs)

    score, visible = RNG.standard_normal((5, 5)), np.triu(np.ones((5, 5), bool))
    for mask in (None, visible):
        given = adapt_signature(softmax, CATALOGUE["softmax"])(score=score, mask=mask)
        assert np.array_equal(given, numpy_ref.softmax(score, mask))
    assert list(seen) == ["mask"]


def test_causal_is_what_the_operation_is() -> None:
    assert bind(flash_attn, SDPA, Declarations()).fixed == {"causal": False}
    assert bind(flash_attn, ALIBI, Declarations()).fixed == {"causal": True}


def test_the_names_of_a_builtin_are_read_off_its_documentation() -> None:
    import torch.nn.functional

    found = bind(torch.nn.functional.scaled_dot_product_attention, SDPA, Declarations())
    assert found.given == {
        "query": "query",
        "key": "key",
        "value": "value",
        "mask": "attn_mask",
        "p": "dropout_p",
    }


def silent(*arguments: Any) -> Any:
    """Says nothing of its arguments."""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda a, b, c: a, "argument 'a' of scaled_dot_product_attention"),
        (lambda q, k, v, heads: q, "argument 'heads' of scaled_dot_product_attention"),
        (lambda q, k: q, "no argument takes value"),
        (max, "names of its arguments are not known"),
        (silent, "no argument takes query"),
    ],
    ids=["letters", "one of them", "one too few", "builtin", "anything"],
)
def test_nothing_is_bound_by_position(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bind(function, SDPA, Declarations())


def test_a_file_says_what_its_names_mean() -> None:
    declared = Declarations(arguments={"a": "query", "b": "key", "c": "value", "mask": None})
    adapted = adapt_signature(
        lambda b, c, a, mask="unread": (
            numpy_ref.scaled_dot_product_attention(a, b, c) if mask == "unread" else None
        ),
        SDPA,
        declared,
    )
    assert np.array_equal(adapted(**INPUTS, mask=None), EXPECTED)


def test_heads_may_stand_behind_positions() -> None:
    def bnhd(query: Any, key: Any, value: Any) -> Any:
        assert query.shape == (2, 5, 3, 16) and query.flags.c_contiguous
        swapped = (x.swapaxes(1, 2) for x in (query, key, value))
        return numpy_ref.scaled_dot_product_attention(*swapped).swapaxes(1, 2)

    adapted = adapt_signature(bnhd, SDPA, Declarations(terms={"LAYOUT": "BNHD"}))
    assert np.array_equal(adapted(**INPUTS), EXPECTED)


FILE = """
import numpy as np
{declared}

def scaled_dot_product_attention({names}):
    return np.zeros(1)
"""


@pytest.mark.parametrize(
    ("names", "declared", "note"),
    [
        ("q, k, v, attn_mask=None", "", "q=query, k=key, v=value, attn_mask=mask"),
        ("query, key, value, block=64", "", ""),
        ("a, k, v", "ARGUMENTS = {'a': 'query'}", "a=query, k=key, v=value"),
        ("q_states, K_cache, the_values", "", "q_states=query, K_cache=key, the_values=value"),
    ],
)
def test_the_mapping_is_told(names: str, declared: str, note: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(names=names, declared=declared))
    told = [line for line in load(str(file)).notes if "called with" in line]
    assert told == ([f"scaled_dot_product_attention is called with {note}"] if note else [])


@pytest.mark.parametrize(
    ("names", "declared", "words"),
    [
        ("a, b", "", "argument 'a'"),
        ("q_k, key, value", "", 'ARGUMENTS = {"q_k": "query"}'),
        ("a, valeu, keyz", "", '{"valeu": "value", "keyz": "key", "a": "query"}'),
        ("q, k, v", "LAYOUT = 'NBHD'", "LAYOUT: wanted BHND, BNHD, BND, ND"),
        ("q, k, v", "ARGUMENTS = ['q']", "ARGUMENTS: wanted a mapping"),
    ],
)
def test_what_cannot_be_told_breaks_the_file(
    names: str, declared: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(names=names, declared=declared))
    assert words in str(load(str(file)).broken)


@pytest.mark.parametrize("names", ["a, b, c", "left, right, content, hide=None", "q, there, v"])
def test_the_line_that_is_offered_for_unknown_names_works(names: str, tmp_path: Path) -> None:
    """Of three names that are known by nothing no line was offered: a dead end."""
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(names=names, declared=""))
    words = str(load(str(file)).broken)
    *_, line = fold(words, 100)
    assert line.startswith("  ARGUMENTS = {") and line.endswith("}"), words
    file.write_text(FILE.format(names=names, declared=line.strip()))
    pasted = load(str(file))
    assert pasted.broken is None and len(pasted.implementations) == 1


def flash_attn_combine(out_partial, lse_partial):  # type: ignore[no-untyped-def]
    return numpy_ref.merge_attention(out_partial, lse_partial)


def padded_mask(B, N, M, is_causal=False, seq_lens=None, query_seq_lengths=None):  # type: ignore[no-untyped-def]
    lengths = {"lengths": seq_lens, "query_lengths": query_seq_lengths}
    return numpy_ref.visible_keys(B, N, M, causal=is_causal, **lengths)


def test_names_of_a_merge_and_of_lengths_are_known() -> None:
    parts = RNG.standard_normal((3, 2, 2, 4, 5)), RNG.standard_normal((3, 2, 2, 4))
    merge = adapt_signature(flash_attn_combine, CATALOGUE["merge_attention"])
    found = merge(outputs=parts[0], lses=parts[1])
    for one, other in zip(found, numpy_ref.merge_attention(*parts), strict=True):
        np.testing.assert_array_equal(one, other)
    given = {"causal": True, "lengths": np.array([2, 3]), "query_lengths": np.array([1, 2])}
    keys = adapt_signature(padded_mask, CATALOGUE["visible_keys"])
    expected = numpy_ref.visible_keys(2, 2, 3, **given)
    np.testing.assert_array_equal(keys(B=2, N=2, M=3, **given), expected)


def test_an_option_that_a_function_does_not_take_is_not_supported() -> None:
    keys = adapt_signature(padded_mask, CATALOGUE["visible_keys"])
    assert keys(B=1, N=1, M=2, window=None, pinned=0).all()
    with pytest.raises(NotImplementedError, match="takes no window"):
        keys(B=1, N=1, M=2, window=(1, 1))


GROUPED = CATALOGUE["grouped_attention"]
SHARED = {
    "query": RNG.standard_normal((2, 4, 5, 8)),
    "key": RNG.standard_normal((2, 2, 5, 8)),
    "value": RNG.standard_normal((2, 2, 5, 8)),
}
OPTIONS = {"causal": True, "window": (2, None), "soft_cap": 1.5, "scale": 0.5}


def flash_attention_3(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: Any = None,
    causal: Any = False,
    window_size: Any = (-1, -1),
    softcap: Any = 0.0,
) -> Any:
    window = None if window_size == (-1, -1) else tuple(None if x < 0 else x for x in window_size)
    own = {"scale": softmax_scale, "soft_cap": softcap or None, "window": window}
    return numpy_ref.grouped_attention(q, k, v, causal=causal, **own)


def flashinfer(
    q: Any,
    k: Any,
    v: Any,
    sm_scale: Any = 1.0,
    causal: Any = False,
    window_left: Any = -1,
    logits_soft_cap: Any = 0.0,
    return_lse: Any = False,
) -> Any:
    assert return_lse
    return flash_attention_3(q, k, v, sm_scale, causal, (window_left, -1), logits_soft_cap)


def onnx(
    Q: Any,
    K: Any,
    V: Any,
    q_num_heads: Any,
    kv_num_heads: Any,
    is_causal: Any = 0,
    left_window_size: Any = -1,
    right_window_size: Any = -1,
    softcap: Any = 0.0,
    scale: Any = None,
) -> Any:
    assert (q_num_heads, kv_num_heads) == (4, 2)
    sides = left_window_size, right_window_size
    return flash_attention_3(Q, K, V, scale, is_causal, sides, softcap)


@pytest.mark.parametrize("function", [flash_attention_3, flashinfer, onnx])
@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["nothing asked", "all options"])
def test_names_and_forms_of_todays_options_are_known(
    function: Callable[..., Any], options: dict[str, Any]
) -> None:
    given = SHARED | dict.fromkeys(OPTIONS) | {"causal": False} | options
    found = adapt_signature(function, GROUPED)(**given)
    for one, other in zip(found, numpy_ref.grouped_attention(**SHARED, **options), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_window_of_which_one_side_is_taken_is_not_supported_on_the_other() -> None:
    with pytest.raises(NotImplementedError, match="takes no window of"):
        adapt_signature(flashinfer, GROUPED)(**SHARED, window=(2, 1))


@pytest.mark.parametrize("named", [True, False], ids=["names", "any name"])
def test_heads_that_share_keys_may_stand_behind_positions(named: bool) -> None:
    def behind(query: Any, key: Any, value: Any, **options: Any) -> Any:
        assert (query.shape[2], key.shape[2]) == (4, 2)
        swapped = (x.swapaxes(1, 2) for x in (query, key, value))
        output, lse = numpy_ref.grouped_attention(*swapped, **options)
        return output.swapaxes(1, 2), lse

    function = (lambda q, k, v: behind(q, k, v)) if named else behind
    found = adapt_signature(function, GROUPED, Declarations(terms={"LAYOUT": "BNHD"}))(**SHARED)
    for one, other in zip(found, numpy_ref.grouped_attention(**SHARED), strict=True):
        np.testing.assert_array_equal(one, other)


ROTARY = CATALOGUE["rotary_embedding"]
TURNED = {
    "x": np.random.default_rng(0).standard_normal((2, 3, 5, 8)),
    "positions": np.arange(10).reshape(2, 5),
}


def apply_rotary(input, position_ids, is_neox_style=True, rope_theta=1e4, rotary_embedding_dim=0):
    pairing = "halves" if is_neox_style else "interleaved"
    width = rotary_embedding_dim or None
    return numpy_ref.rotary_embedding(input, position_ids, pairing, rope_theta, width)


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize("options", [{}, {"base": 8.0}, {"rotary_dim": 4}])
def test_a_flag_says_how_channels_are_paired(pairing, options):
    turn, call = adapt_signature(apply_rotary, ROTARY), TURNED | {"pairing": pairing} | options
    np.testing.assert_array_equal(turn(**call), numpy_ref.rotary_embedding(**call))


def test_a_flag_has_no_third_pairing():
    with pytest.raises(NotImplementedError, match="takes no pairing"):
        adapt_signature(apply_rotary, ROTARY)(**TURNED, pairing="half")


def test_pages_are_given_end_to_end_or_by_slots_where_a_library_takes_them_so() -> None:
    given: dict[str, Any] = {}

    def flashinfer(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len):  # type: ignore[no-untyped-def]
        given.update(starts=kv_indptr, pages=kv_indices, last=kv_last_page_len, pool=k_cache)

    def sglang(q, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, num_kv_heads):  # type: ignore[no-untyped-def]
        given.update(starts=kv_indptr, pages=kv_indices, pool=k_buffer, heads=num_kv_heads)

    inputs: dict[str, Any] = {
        "query": np.zeros((5, 4, 3)),
        "key_pages": np.zeros((4, 2, 1, 3)),
        "value_pages": np.zeros((4, 2, 1, 5)),
        "page_table": np.array([[3, 1, -9], [0, 77, 5], [9, 9, 9]]),
        "lengths": np.array([3, 2, 0]),
        "query_starts": np.array([0, 2, 4, 5]),
    }
    adapt_signature(flashinfer, PAGED)(**inputs)
    assert given["starts"].tolist() == [0, 2, 3, 3] and given["pages"].tolist() == [3, 1, 0]
    assert given["last"].tolist() == [1, 2, 2] and given["pool"].shape == (4, 2, 1, 3)
    adapt_signature(sglang, PAGED)(**inputs)
    assert given["starts"].tolist() == [0, 3, 5, 5] and given["pages"].tolist() == [6, 7, 2, 0, 1]
    assert given["pool"].shape == (8, 1, 3) and given["heads"] == 1
    for wrong in ({"lengths": np.array([7, 0, 0])}, {"page_table": np.zeros(3, int)}):
        with pytest.raises(NotImplementedError):
            adapt_signature(flashinfer, PAGED)(**inputs | wrong)


def test_a_latent_is_known_by_the_names_of_libraries_and_its_scale_has_no_default() -> None:
    given: dict[str, Any] = {}

    def mla(q_nope, q_pe, ckv, kpe, sm_scale):  # type: ignore[no-untyped-def]
        given.update(rope=q_pe, latent=ckv, position=kpe, scale=sm_scale)

    parts = {"query": (1, 2, 3, 5), "query_rope": (1, 2, 3, 4), "latent": (1, 7, 5)}
    call: dict[str, Any] = {name: np.ones(shape) for name, shape in parts.items()}
    call |= {"key_rope": np.zeros((1, 7, 4))}
    adapted = adapt_signature(mla, CATALOGUE["latent_attention"])
    for scale in (0.25, None):
        adapted(**call, scale=scale)
        assert given["scale"] == scale and given["latent"] is call["latent"]
        assert given["rope"] is call["query_rope"] and given["position"] is call["key_rope"]


def test_an_own_width_of_values_is_one_of_pages_too() -> None:
    shapes = {"query": (5, 4, 3), "key_pages": (4, 2, 1, 3), "value_pages": (4, 2, 1, 5)}
    call: dict[str, Any] = {name: np.zeros(shape) for name, shape in shapes.items()}
    assert [*features_of(call | {"query_starts": np.array([0, 5])})] == ["E != D"]
    packed: dict[str, Any] = {"query": (5, 4, 3), "key": (5, 1, 3), "value": (5, 1, 3)}
    call = {name: np.zeros(shape) for name, shape in packed.items()}
    assert [*features_of(call | {"query_starts": np.array([0, 5])})] == []  # not heads for rows


@pytest.mark.parametrize(
    ("default", "window", "given"),
    [
        ("=4", None, 2**30),
        ("=4", (2, None), 2),
        ("=4", (None, None), 2**30),
        ("=-1", None, -1),
        (": int", (3, None), 3),
        ("=0", None, 0),
    ],
)
def test_a_window_of_one_number_is_its_left_count(default: str, window: Any, given: int) -> None:
    """Where a call has none, it was the function's own default that hid keys unasked."""
    scope: dict[str, Any] = {}
    exec(f"def attention(q, k, v, window_size{default}): return window_size, None", scope)
    adapted = adapt_signature(scope["attention"], CATALOGUE["grouped_attention"])
    inputs = dict.fromkeys(("query", "key", "value"), np.zeros((1, 2, 3, 4)))
    assert adapted(**inputs, **({} if window is None else {"window": window}))[0] == given
    with pytest.raises(NotImplementedError, match="takes no window"):
        adapted(**inputs, window=(1, 0))
