"""
Layers at the width of a model: a factor of 1 % is improbable in float32, one of 3 % in the halves,
and none of our own layers is accused.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.checks.width import model_width
from attnverify.checks.width.model_width import (
    MODELS,
    drawn_call,
    judge_at_width,
    model_width_checks,
)
from attnverify.checks.width.statistical import NothingSaid
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.precision import FORMATS, PRESETS

ONE = (384, 1, 0)
OWN = {
    column: {i.operation.name: i for i in load(column).implementations if i.how in ("", "eager")}
    for column in ("numpy_ref", "torch_impl")
}
LAYERS = [name for name, op in CATALOGUE.items() if op.traits.parameters and not op.is_gradient]
FACTORS = {"float32": 1.01, "float16": 1.03, "bfloat16": 1.03}
FIRST_WEIGHT = {
    "self_attention": "w_value",
    "multi_head_attention": "v_proj.weight",
    "multi_head_self_attention": "v_proj.weight",
    "relative_multi_head_attention": "value.linear.weight",
    "alibi_multi_head_attention": "value.linear.weight",
    "transformer_xl_layer": "o_net.weight",
    "transformer_xl": "o_net.weight",
}
Change = Callable[[dict[str, Any]], dict[str, Any]]


def changed(own: Implementation, change: Change) -> Implementation:
    """An implementation that answers to other arguments."""
    function = own.function
    return replace(own, function=lambda **given: function(**change(given)))


def with_factor(name: str, factor: float) -> Change:
    """One parameter, in each layer, times a factor, rounded as it is stored."""

    def of_layer(parameters: Any) -> Any:
        x = parameters[name]
        return parameters | {name: (x.astype(float) * factor).astype(x.dtype)}

    def change(given: dict[str, Any]) -> dict[str, Any]:
        layers = given["parameters"]
        several = isinstance(layers, list)
        return given | {
            "parameters": [of_layer(x) for x in layers] if several else of_layer(layers)
        }

    return change


OFTEN = {(name, [*FACTORS][place % len(FACTORS)]) for place, name in enumerate(LAYERS)}
"""Each layer in one dtype, and each dtype, with each commit; the others nightly."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(*each, marks=() if each in OFTEN else pytest.mark.thorough)
        for each in product(LAYERS, FACTORS)
    ],
)
def test_a_factor_on_a_parameter_is_improbable(name: str, dtype: str) -> None:
    own, factor = OWN["numpy_ref"][name], FACTORS[dtype]
    judge_at_width(name, ONE, 0, own, dtype)
    wrong = changed(own, with_factor(FIRST_WEIGHT[name], factor))
    with pytest.raises(Disagreement, match=r"4 of 4 independent draws.* of 1e-12") as error:
        judge_at_width(name, ONE, 0, wrong, dtype)
    assert error.value.kind == "improbable" and error.value.budget > 1


EACH_COMMIT = {("torch_impl", "bfloat16"), ("numpy_ref", "float32")}
EVERY = [
    pytest.param(*own, marks=() if own in EACH_COMMIT else pytest.mark.thorough)
    for own in product(OWN, (*FACTORS, "float64"))
]


@pytest.mark.parametrize(("column", "dtype"), EVERY)
def test_none_of_our_own_is_accused(column: str, dtype: str) -> None:
    judged = 0
    for name in LAYERS:
        for _, check in model_width_checks(name, "default", 7):
            own = OWN[column].get(name)
            if own is not None:
                assert check(own, dtype) < 0.5
                judged += 1
    assert judged >= len(LAYERS)


def test_what_one_draw_alone_has_is_not_told() -> None:
    """Once in a thousand calls rounding alone is beyond the bound."""
    own, calls = OWN["numpy_ref"]["self_attention"], iter(range(10))
    wrong = with_factor("w_value", 1.01)
    once = changed(own, lambda given: wrong(given) if next(calls) == 0 else given)
    assert judge_at_width("self_attention", ONE, 0, once, "float32") <= 1
    assert next(calls) == 2


def test_nan_is_told_at_once_as_a_wrong_number() -> None:
    own = OWN["numpy_ref"]["self_attention"]
    function = own.function
    lost = replace(
        own, function=lambda **given: map_leaves(lambda x: x * np.nan, function(**given))
    )
    with pytest.raises(Disagreement, match="4 of 4"):
        judge_at_width("self_attention", ONE, 0, lost, "float32")


@pytest.fixture
def uncached() -> Iterator[None]:
    drawn_call.cache_clear()
    yield
    drawn_call.cache_clear()


@pytest.mark.usefixtures("uncached")
def test_a_bound_that_exceeds_the_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said = model_width.what_is_said

    def wide(*given: Any) -> Any:
        bounds, allowed = said(*given)
        return [1e3 * each + 1e3 for each in bounds], allowed

    monkeypatch.setattr(model_width, "what_is_said", wide)
    with pytest.raises(Unsupported, match="not judged: the bound exceeds the output"):
        judge_at_width("self_attention", ONE, 0, OWN["numpy_ref"]["self_attention"], "float32")


@pytest.mark.usefixtures("uncached")
def test_why_nothing_is_said_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*given: Any) -> Any:
        raise NothingSaid("so")

    monkeypatch.setattr(model_width, "what_is_said", nothing)
    with pytest.raises(Unsupported, match="not judged: so"):
        drawn_call("self_attention", ONE, "float32", 0, PRESETS["eager"](FORMATS["float32"]))


def test_the_quick_profile_does_not_pay_for_it() -> None:
    assert MODELS["quick"] == ()
    assert not model_width_checks("multi_head_attention", "quick", 0)
    names = [name for name, _ in model_width_checks("transformer_xl", "thorough", 0)]
    assert names == [
        "statistical: F=384, feed-forward",
        "statistical: F=384",
        "statistical: F=384, 4 layers",
        "statistical: F=1024",
    ]
    assert len(model_width_checks("self_attention", "default", 0)) == 1
    assert not model_width_checks("softmax", "default", 0)
