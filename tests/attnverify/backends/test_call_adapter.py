"""The arguments of a user's function: what each is given, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify import numpy_ref
from attnverify.backends.call_adapter import adapt_signature, bind
from attnverify.backends.declarations import Declarations
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE

SDPA = CATALOGUE["scaled_dot_product_attention"]
ALIBI = CATALOGUE["alibi_attention"]

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

    adapted = adapt_signature(bnhd, SDPA, Declarations(layout="BNHD"))
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
        ("a, b, c", "", "argument 'a'"),
        ("q, k, v", "LAYOUT = 'NBHD'", "LAYOUT: wanted BHND or BNHD"),
        ("q, k, v", "ARGUMENTS = ['q']", "ARGUMENTS: wanted a mapping"),
    ],
)
def test_what_cannot_be_told_breaks_the_file(
    names: str, declared: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(names=names, declared=declared))
    assert words in str(load(str(file)).broken)
