"""
The gradients of scores, softmax, dropout, shifts and memory against the complex-step derivative of
the specification itself, as :mod:`tests.spec.test_gradients` holds those of the attentions.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import spec
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe

STEP = 2.0**-70
SIZES = {"B": 2, "H": 2, "N": 3, "M": 4, "D": 3, "E": 2, "Q": 2, "K": 3, "A": 3, "P": 5}
PARTS = [name for name in CATALOGUE if name.endswith("_grad") and not CATALOGUE[name].is_attention]


def case(operation: str, **options: Any) -> dict[str, Any]:
    """The inputs of a gradient, d_output first."""
    recipe = fixed_recipe(CATALOGUE[operation], SIZES)
    return dict(expand(recipe, "float64")) | options


def with_feed_forward(operation: str) -> Any:
    """The parameters of layers that have one; of its inner units one is given 0 exactly."""
    return expand(fixed_recipe(CATALOGUE[operation], SIZES | {"I": 5}), "float64")["parameters"]


def is_float(x: Any) -> bool:
    return isinstance(x, ndarray) and x.dtype.kind == "f"


def forward(operation: str, inputs: dict[str, Any]) -> list[ndarray]:
    found = getattr(spec, operation.removesuffix("_grad"))(**inputs)
    return [x for x in leaves(found[0] if "mems" in inputs else found) if x is not None]


def complex_step(operation: str, inputs: dict[str, Any]) -> list[ndarray]:
    """
    The derivative by every float array among the inputs, one number moved at a time; a memory is a
    constant, and what arrives at a new one goes nowhere.
    """
    names = [name for name in inputs if name.startswith("d_") and name != "d_new_mems"]
    arriving = [x for name in names for x in leaves(inputs[name])]
    rest = {name: x for name, x in inputs.items() if not name.startswith("d_")}
    moved = map_leaves(lambda x: x.astype(complex) if is_float(x) else x, rest)
    found = []
    constants = [id(x) for name in ("mem", "mems") for x in leaves(moved.get(name))]
    for x in (x for x in leaves(moved) if isinstance(x, ndarray) and x.dtype.kind == "c"):
        derivative = np.zeros(x.shape)
        for at in () if id(x) in constants else np.ndindex(x.shape):
            x[at] += STEP * 1j
            outputs = zip(arriving, forward(operation, moved), strict=True)
            derivative[at] = sum(np.sum(d * y.imag) for d, y in outputs) / STEP
            x[at] = x[at].real
        found.append(derivative)
    return found


def worst(operation: str, inputs: dict[str, Any]) -> float:
    """
    The largest error of any gradient, relative to its largest element; to a hundredth of that of
    all where it is smaller, since that of a key's bias is 0 and rounded; inf where it is NaN.
    """
    gradients = list(leaves(getattr(spec, operation)(**inputs)))
    wanted, errors = list(complex_step(operation, inputs)), [0.0]
    largest = max((float(np.max(np.abs(x), initial=0.0)) for x in wanted), default=0.0)
    for gradient, derivative in zip(gradients, wanted, strict=True):
        assert gradient.shape == derivative.shape
        error = np.max(np.abs(gradient - derivative)) / max(
            np.max(np.abs(derivative)), largest / 100, np.finfo(float).tiny
        )
        errors.append(np.inf if np.isnan(error) else float(error))
    return max(errors)


def hiding(visible: ndarray) -> ndarray:
    return np.where(visible, np.linspace(-1, 1, visible.size).reshape(visible.shape), -np.inf)


def some_pairs() -> ndarray:
    """[N N], with a row that sees no key."""
    return np.array([[False] * 3, [True, False, True], [True] * 3])


def drawn(*shape: int) -> ndarray:
    """A draw that drops every third weight."""
    kept: ndarray = np.arange(np.prod(shape)).reshape(shape) % 3 != 1
    return kept


SEEN = np.array([[False] * 4, [True, False, True, True], [True] * 4])
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "softmax_grad": {
        "boolean": {"mask": SEEN},
        "float": {"mask": hiding(SEEN)},
        "one row": {"mask": hiding(SEEN[1:2])},
    },
    "dropout_grad": {"kept": {"keep": SEEN, "p": 0.25}, "of keys": {"keep": SEEN[1], "p": 0.5}},
    "self_attention_grad": {
        "boolean": {"mask": some_pairs()},
        "float": {"mask": hiding(some_pairs())},
        "dropout": {"mask": some_pairs(), "keep": ~some_pairs(), "p": 0.25},
    },
    "multi_head_attention_grad": {
        "a mask for all": {"attn_mask": hiding(SEEN)},
        "a mask per head": {"attn_mask": hiding(np.stack([SEEN, ~SEEN, SEEN, SEEN]))},
        "padding": {"key_padding_mask": np.array([[False, True, True, False], [True] * 4])},
        "dropout": {"keep": drawn(2, 2, 3, 4), "p": 0.25},
    },
    "multi_head_self_attention_grad": {
        "both masks": {
            "attn_mask": hiding(some_pairs()),
            "key_padding_mask": np.array([[False, True, False], [False] * 3]),
        },
        "dropout": {"keep": drawn(2, 2, 3, 3), "p": 0.25},
    },
    "relative_multi_head_attention_grad": {
        "start": {"align": "start", "visible": SEEN},
        "end": {"align": "end", "visible": SEEN[1:2]},
        "dropout": {"align": "end", "keep": drawn(2, 2, 3, 4), "p": 0.25},
    },
    "alibi_multi_head_attention_grad": {
        "some pairs": {"visible": some_pairs()},
        "dropout": {"keep": drawn(2, 1, 3, 3), "p": 0.25},
    },
    "transformer_xl_layer_grad": {
        "without memory": {"mem": None, "position": np.cos(np.arange(24.0)).reshape(3, 8)},
        "some keys": {"visible": np.eye(3, 5, 2, dtype=bool) | (np.arange(5) == 1)},
        "eps": {"eps": 0.25},
        "feed-forward": {"parameters": with_feed_forward("transformer_xl_layer_grad")},
        "dropout": {"keep": drawn(2, 2, 3, 5), "p": 0.25},
    },
    "transformer_xl_grad": {
        "without memory": {"mems": None, "d_new_mems": None},
        "feed-forward": {"parameters": with_feed_forward("transformer_xl_grad")},
        "nothing kept": {"mem_len": 0, "d_new_mems": [np.zeros((2, 0, 8))] * 2},
        "dropout": {"keep": drawn(2, 2, 1, 3, 5), "p": 0.25},
    },
    "learned_relative_score_grad": {"start": {"align": "start"}, "end": {"align": "end"}},
}
CASES = [
    pytest.param(name, more, id=f"{name} {words}")
    for name in PARTS
    if name != "update_mems_grad"
    for words, more in {"plain": {}, **OPTIONS.get(name, {})}.items()
]


@pytest.mark.parametrize(("operation", "options"), CASES)
def test_a_gradient_is_the_derivative(operation: str, options: dict[str, Any]) -> None:
    assert worst(operation, case(operation, **options)) < 1e-12


@pytest.mark.parametrize(("N", "M"), [(1, 1), (1, 4), (4, 1), (5, 3)])
@pytest.mark.parametrize("operation", ["shift_right_grad", "rel_shift_grad"])
def test_a_shift_goes_back_at_every_size(operation: str, N: int, M: int) -> None:
    rng = np.random.default_rng(1)
    x, d_output = rng.standard_normal((2, 2, N, M))
    assert worst(operation, {"d_output": d_output, "x": x}) == 0


@pytest.mark.parametrize("mem_len", [0, 1, 9])
def test_the_memory_is_cut_off_from_the_gradient(mem_len: int) -> None:
    hids, mems = [np.ones((1, 3, 2))], [np.ones((1, 2, 2))]
    new = spec.update_mems(hids, mems, mem_len)
    assert new is not None
    found = spec.update_mems_grad([np.ones_like(x) for x in new], hids, mems, mem_len)
    assert [x.shape for x in leaves(found)] == [(1, 3, 2), (1, 2, 2)]
    assert not any(x.any() for x in leaves(found))


def test_without_a_memory_nothing_arrives_and_no_gradient_is_by_one() -> None:
    found = spec.update_mems_grad(None, [np.ones((1, 3, 2))], None, 2)
    assert [x.shape for x in leaves(found)] == [(1, 3, 2)]


@pytest.mark.parametrize("operation", [name for name in PARTS if name != "update_mems_grad"])
def test_one_element_that_is_wrong_in_the_tenth_digit_is_noticed(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[..., Any] = getattr(spec, operation)

    def wrong(**inputs: Any) -> Any:
        found = right(**inputs)
        last = [x for x in leaves(found) if x.any()][-1]  # a memory's gradient is zero
        last[np.unravel_index(np.argmax(np.abs(last)), last.shape)] *= 1 + 1e-10
        return found

    monkeypatch.setattr(spec, operation, wrong)
    assert worst(operation, case(operation)) > 1e-12
