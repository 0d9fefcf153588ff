"""Clauses of the gradients of self-attention and multi-head attention."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.spec import layers
from tests.spec.clauses.multi_head import HIDING, MANY, SEEN, SELF, SINGLE, many, several, single
from tests.spec.clauses.projections import B, F, H, M, N, drawn
from tests.spec.clauses.registry import Function, answering, clause, given, patched
from tests.spec.derivatives import derivative
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
OF_SINGLE, OF_MANY, OF_SELF = f"{SINGLE}_grad", f"{MANY}_grad", f"{SELF}_grad"


def are_derivatives(
    operation: str, found: Any, inputs: Inputs, names: tuple[str, ...], *arriving: ndarray
) -> bool:
    """Whether the gradients by these inputs, and then by the parameters, are the derivatives."""
    by_name = zip(found, names, strict=False)
    by_parameter = found[len(names)].items()
    return all(
        close(x, derivative(operation, inputs, name, *arriving)) for x, name in by_name
    ) and all(
        close(x, derivative(operation, inputs, name, *arriving, of="parameters"))
        for name, x in by_parameter
    )


def without_part(place: int) -> Function:
    """Twin: x as query, as key or as value is left out."""

    def change(found: Any, d_output: ndarray, x: ndarray, parameters: Inputs, **_: Any) -> Any:
        q, k, v = ((x @ w.T)[:, None] for w in parameters.values())
        parts = spec.scaled_dot_product_attention_grad(d_output[:, None], q, k, v)
        weight = list(parameters.values())[place]
        return found[0] - parts[place][:, 0] @ weight, *found[1:]

    return answering(OF_SINGLE, change)


@clause(OF_SINGLE, 1, false=[without_part(0), without_part(1), without_part(2)])
def the_gradient_of_one_head_by_x_is_the_sum_over_its_parts(gradient: Function) -> None:
    x, d_output = single(), normals((B, N, 2), seed=2)[0]
    found = gradient(d_output=d_output, **x)
    assert close(found[0], derivative(SINGLE, x, "x", d_output))


def of_parameters(name: str, place: int, change: Function) -> Function:
    """Twin: other gradients of the parameters."""

    def changed(found: Any, **inputs: Any) -> Any:
        found = list(found)
        found[place] = change(found[place], **inputs)
        return tuple(found)

    return answering(name, changed)


def means(gradients: Inputs, **_: Any) -> Inputs:
    return {name: x / B for name, x in gradients.items()}


def as_a_list(gradients: Inputs, **_: Any) -> list[ndarray]:
    return list(gradients.values())


def weights_transposed(gradients: Inputs, **_: Any) -> Inputs:
    return {name: x.T for name, x in gradients.items()}


@clause(
    OF_SINGLE,
    2,
    false=[
        of_parameters(OF_SINGLE, 1, means),
        of_parameters(OF_SINGLE, 1, as_a_list),
        of_parameters(OF_SINGLE, 1, weights_transposed),
    ],
)
def gradients_of_the_parameters_have_their_names_and_shapes(gradient: Function) -> None:
    x, d_output = single(), normals((B, N, 2), seed=2)[0]
    found = gradient(d_output=d_output, **x)[1]
    assert isinstance(found, dict) and list(found) == list(x["parameters"])
    for name, d_weight in found.items():
        assert d_weight.shape == x["parameters"][name].shape
        assert close(d_weight, derivative(SINGLE, x, name, d_output, of="parameters"))


def arriving(queries: int, keys: int) -> Inputs:
    d_output, d_weights = normals((B, queries, F), (B, H, queries, keys), seed=2)
    return {"d_output": d_output, "d_weights": d_weights}


def biases_of_all(gradients: Inputs, **_: Any) -> Inputs:
    names = [name.replace("weight", "bias") for name in gradients if name.endswith("weight")]
    return {name: np.zeros(F) for name in names} | gradients


@clause(
    OF_MANY,
    1,
    false=[
        of_parameters(OF_MANY, 3, means),
        of_parameters(OF_MANY, 3, as_a_list),
        of_parameters(OF_MANY, 3, weights_transposed),
        of_parameters(OF_MANY, 3, biases_of_all),
    ],
)
def an_absent_bias_has_no_gradient(gradient: Function) -> None:
    for x in (many(), many(bias=False)):
        d = arriving(N, M)
        found = gradient(**d, **x)
        assert isinstance(found[3], dict) and list(found[3]) == list(x["parameters"])
        assert are_derivatives(MANY, found, x, ("query", "key", "value"), *d.values())


def unseen_gets(number: float) -> Function:
    """Twin: the last key, which nobody sees, has a gradient."""

    def change(found: Any, **_: Any) -> Any:
        at_last = np.where(
            np.arange(found[1].shape[1])[:, None] == found[1].shape[1] - 1, number, 0.0
        )
        return found[0], found[1] + at_last, found[2] + at_last, *found[3:]

    return change


def present_as_it_is(x: ndarray, visible: ndarray) -> ndarray:
    """Twin of ``present``: a key that nobody sees is not taken out."""
    return x


def twins_of_presence(name: str) -> list[Function]:
    return [
        answering(name, unseen_gets(1e-30)),
        answering(name, unseen_gets(np.nan)),
        patched(name, layers, "present", present_as_it_is),
    ]


def unseen_is_absent(gradient: Function, d: Inputs, x: Inputs) -> None:
    """The last key is seen by no query: it may be anything, and is as good as none."""
    clean = gradient(**d, **x)
    for number in (np.nan, 1e300):
        last = np.arange(x["key"].shape[1])[:, None] == x["key"].shape[1] - 1
        filled = {name: np.where(last, number, x[name]) for name in ("key", "value")}
        found = gradient(**d, **x | filled)
        assert not found[1][:, -1].any() and not found[2][:, -1].any()
        assert all(np.array_equal(*pair) for pair in zip(found[:3], clean[:3], strict=True))
        assert all(np.array_equal(found[3][name], by) for name, by in clean[3].items())


@clause(OF_MANY, 2, false=twins_of_presence(OF_MANY))
def a_key_that_nobody_sees_gives_nothing_to_the_weights(gradient: Function) -> None:
    without_bias = many(bias=False, key_padding_mask=np.arange(M) == np.full((B, 1), M - 1))
    unseen_is_absent(gradient, arriving(N, M), without_bias)


def mean_of_the_mask(found: Any, **_: Any) -> Any:
    return *found[:-1], found[-1] / (B * H)


def per_head(found: Any, **_: Any) -> Any:
    return *found[:-1], np.repeat(found[-1][None], B * H, axis=0)


@clause(OF_MANY, 3, false=[answering(OF_MANY, mean_of_the_mask), answering(OF_MANY, per_head)])
def a_mask_for_all_heads_has_the_sum_of_their_gradients(gradient: Function) -> None:
    mask, d = np.where(HIDING, -np.inf, normals((N, M), seed=3)[0]), arriving(N, M)
    each = np.repeat(mask[None], B * H, axis=0)
    shared, apart = (gradient(**d, **many(attn_mask=given))[4] for given in (mask, each))
    assert apart.shape == (B * H, N, M) and close(shared, apart.sum(axis=0))
    seen = derivative(MANY, many(attn_mask=mask), "attn_mask", *d.values())
    assert close(shared, seen)


@clause(
    OF_MANY,
    4,
    false=[
        given(OF_MANY, lambda d_weights, **_: {"d_weights": 0 * d_weights}),
        given(OF_MANY, lambda d_weights, p, **_: {"d_weights": (1 - p) * d_weights}),
        given(OF_MANY, lambda **_: {"keep": None, "p": 0.0}),
        given(OF_MANY, lambda keep, **_: {"keep": ~keep}),
    ],
)
def what_arrives_at_the_weights_passes_the_dropout(gradient: Function) -> None:
    x, d = many(keep=drawn(B, H, N, M), p=0.25), arriving(N, M)
    names = ("query", "key", "value")
    assert are_derivatives(MANY, gradient(**d, **x), x, names, *d.values())
    dropped = d | {"d_weights": np.where(x["keep"], d["d_weights"], 1e6)}
    pairs = zip(gradient(**d, **x)[:3], gradient(**dropped, **x)[:3], strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)


def as_query_alone(found: Any, x: ndarray, **inputs: Any) -> Any:
    inputs = {"query": x, "key": x, "value": x} | inputs
    return spec.multi_head_attention_grad(**inputs)[0], *found[1:]


def without_the_values(found: Any, x: ndarray, **inputs: Any) -> Any:
    inputs = {"query": x, "key": x, "value": x} | inputs
    return found[0] - spec.multi_head_attention_grad(**inputs)[2], *found[1:]


@clause(
    OF_SELF, 1, false=[answering(OF_SELF, as_query_alone), answering(OF_SELF, without_the_values)]
)
def the_gradient_of_many_heads_by_x_is_the_sum_over_its_parts(gradient: Function) -> None:
    x, d = several(attn_mask=~SEEN), arriving(N, N)
    found = gradient(**d, **x)
    assert close(found[0], derivative(SELF, x, "x", *d.values()))


def rest_scaled(place: int) -> Function:
    def change(found: Any, **_: Any) -> Any:
        if place == 1:
            return found[0], means(found[1]), *found[2:]
        return *found[:2], found[2] / (B * H)

    return answering(OF_SELF, change)


@clause(
    OF_SELF,
    2,
    false=[
        rest_scaled(1),
        rest_scaled(2),
        answering(OF_SELF, lambda found, **_: found[:2]),
        given(OF_SELF, lambda d_weights, **_: {"d_weights": 0 * d_weights}),
        given(OF_SELF, lambda **_: {"keep": None, "p": 0.0}),
    ],
)
def the_other_gradients_are_those_of_multi_head_attention(gradient: Function) -> None:
    mask = np.where(SEEN, normals((N, N), seed=3)[0], -np.inf)
    x, d = several(attn_mask=mask, keep=drawn(B, H, N, N), p=0.25), arriving(N, N)
    sequence = {name: x["x"] for name in ("query", "key", "value")}
    rest = {name: value for name, value in x.items() if name != "x"}
    found, wanted = gradient(**d, **x), spec.multi_head_attention_grad(**d, **sequence, **rest)
    assert len(found) == 3 and close(found[2], wanted[4])
    assert list(found[1]) == list(wanted[3])
    assert all(close(found[1][name], by) for name, by in wanted[3].items())
