"""Kernels without an axis of heads, and kernels of one matrix each."""

from typing import Any

import numpy as np
import pytest
from numpy import ndarray
from numpy.testing import assert_allclose

from attnverify import spec
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.calls.headless import layouts_of
from attnverify.backends.declarations import Declarations
from attnverify.catalogue.operation import CATALOGUE

RNG = np.random.default_rng(0)
B, H, N, M, D, E = 2, 3, 4, 5, 6, 7
ARRAYS = {
    "query": RNG.standard_normal((B, H, N, D)),
    "key": RNG.standard_normal((B, H, M, D)),
    "value": RNG.standard_normal((B, H, M, E)),
}
SHAPES = ((N, M), (B, H, N, M), (B, 1, N, M), (B, 1, 1, M), (1, H, N, M), (B, 1, N, 1))
AXES = {"BND": 3, "ND": 2}


def without_heads(name: str, axes: int) -> Any:
    """The specification of what has so many axes, refusing more."""

    def function(*given: Any, **inputs: Any) -> Any:
        arrays = [x for x in (*given, *inputs.values()) if isinstance(x, ndarray)]
        assert max(x.ndim for x in arrays) == axes
        own = {
            key: lifted(x) if key in ("query", "key", "value") else x for key, x in inputs.items()
        }
        mask = own.get("mask")
        if mask is not None and mask.ndim == 3:
            own["mask"] = mask[:, None]
        output = getattr(spec, name)(*given, **own)
        return output.reshape(output.shape[4 - axes :] if axes == 2 else (-1, *output.shape[2:]))

    def lifted(x: ndarray) -> ndarray:
        return x[None, None] if axes == 2 else x[:, None]

    return function


def adapted(function: Any, name: str, layout: str) -> Any:
    def own(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return function(query=query, key=key, value=value, mask=mask)

    return adapt_signature(own, CATALOGUE[name], Declarations(terms={"LAYOUT": layout}))


@pytest.mark.parametrize("layout", AXES)
@pytest.mark.parametrize("shape", [None, *SHAPES])
@pytest.mark.parametrize("form", ["bool", "float"])
def test_a_mask_goes_to_the_heads_that_it_is_about(layout: str, shape: Any, form: str) -> None:
    numbers = None if shape is None else np.random.default_rng(1).standard_normal(shape)
    mask = numbers if numbers is None or form == "float" else numbers > -1
    name = "scaled_dot_product_attention"
    call = adapted(without_heads(name, AXES[layout]), name, layout)
    expected = spec.scaled_dot_product_attention(**ARRAYS, mask=mask)
    assert_allclose(call(**ARRAYS, mask=mask), expected, rtol=1e-9)


def test_what_heads_share_goes_to_each_and_what_is_theirs_to_its_own() -> None:
    more = {
        "position": RNG.standard_normal((H, M, D)),
        "u": RNG.standard_normal((H, D)),
        "v": RNG.standard_normal((H, D)),
    }

    def one(query: Any, key: Any, value: Any, position: Any, u: Any, v: Any) -> Any:
        assert (query.ndim, position.ndim, u.ndim) == (2, 2, 1)
        given = [x[None, None] for x in (query, key, value)]
        lifted = [x[None] for x in (position, u, v)]
        return spec.transformer_xl_attention(*given, *lifted)[0, 0]

    operation = CATALOGUE["transformer_xl_attention"]
    call = adapt_signature(one, operation, Declarations(terms={"LAYOUT": "ND"}))
    expected = spec.transformer_xl_attention(**ARRAYS, **more)
    assert_allclose(call(**ARRAYS, **more), expected, rtol=1e-9)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)])
def test_leading_axes_are_walked(lead: tuple[int, ...]) -> None:
    def softmax(x: Any) -> Any:
        assert x.ndim == 2
        return spec.softmax(x)

    call = adapt_signature(softmax, CATALOGUE["softmax"], Declarations(terms={"LAYOUT": "ND"}))
    score = RNG.standard_normal((*lead, N, M))
    assert np.array_equal(call(score=score), spec.softmax(score))


@pytest.mark.parametrize("layout", AXES)
def test_a_gradient_goes_through_it(layout: str) -> None:
    torch = pytest.importorskip("torch")

    def own(query: Any, key: Any, value: Any) -> Any:
        assert query.ndim == AXES[layout]
        return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value

    declared = Declarations(terms={"LAYOUT": layout})
    call = adapt_signature(own, CATALOGUE["scaled_dot_product_attention"], declared)
    given = {name: torch.tensor(x, requires_grad=True) for name, x in ARRAYS.items()}
    arriving = RNG.standard_normal((B, H, N, E))
    call(**given).backward(torch.tensor(arriving))
    expected = spec.scaled_dot_product_attention_grad(arriving, **ARRAYS)
    for x, wanted in zip(given.values(), expected, strict=False):
        assert_allclose(x.grad.numpy(), wanted, rtol=1e-9)


@pytest.mark.parametrize("layout", AXES)
def test_an_exported_gradient_is_of_what_every_head_has_of_its_own(layout: str) -> None:
    name = "scaled_dot_product_attention_grad"

    def own(d_output: Any, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        lift = (lambda x: x[None, None]) if layout == "ND" else (lambda x: x[:, None])
        given = [lift(x) for x in (d_output, query, key, value)]
        found = spec.scaled_dot_product_attention_grad(*given, mask)
        lower = slice(None), 0
        return [x[0, 0] if layout == "ND" else x[lower] for x in found if x is not None]

    call = adapt_signature(own, CATALOGUE[name], Declarations(terms={"LAYOUT": layout}))
    arriving = RNG.standard_normal((B, H, N, E))
    expected = spec.scaled_dot_product_attention_grad(arriving, **ARRAYS)
    for found, wanted in zip(call(d_output=arriving, **ARRAYS), expected, strict=False):
        assert_allclose(found, wanted, rtol=1e-9)
    with pytest.raises(NotImplementedError, match="the gradient of a mask"):
        call(d_output=arriving, **ARRAYS, mask=np.zeros((N, M)))


def test_only_where_a_head_knows_nothing_of_its_place() -> None:
    assert layouts_of(CATALOGUE["scaled_dot_product_attention"]) == ("BNHD", "BND", "ND")
    assert layouts_of(CATALOGUE["softmax"]) == ("ND",)
    assert layouts_of(CATALOGUE["additive_attention"]) == ("ND",)
    assert layouts_of(CATALOGUE["alibi_attention"]) == ("BNHD",)
    assert layouts_of(CATALOGUE["grouped_attention"]) == ("BNHD",)
    assert layouts_of(CATALOGUE["multi_head_attention"]) == ()
    assert layouts_of(CATALOGUE["get_slopes"]) == ()


def test_what_is_no_array_is_left_to_the_judge() -> None:
    declared = Declarations(terms={"LAYOUT": "ND"})
    call = adapt_signature(
        lambda query, key, value: 1.0, CATALOGUE["scaled_dot_product_attention"], declared
    )
    assert call(**ARRAYS) == 1.0
