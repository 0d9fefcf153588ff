"""
The specification and its vectorised form against scalar loops in long double that were written
from the papers; gradients against a step of 1e-200 in the imaginary direction.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref, spec
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from tests.spec.scalar_derivatives import gradients, latent, packed
from tests.support import scalar_oracle as oracle
from tests.support.scalar_oracle import ATTENTIONS, Inputs, long

COLUMNS = pytest.mark.parametrize("column", [spec, numpy_ref], ids=["spec", "numpy_ref"])
B, H, D, E, A, Q, K, P, F = 2, 3, 2, 3, 5, 4, 3, 6, 6
SIZES = [(3, 5), (4, 4), (5, 2)]
each_size = pytest.mark.parametrize(("N", "M"), SIZES)


def drawing(seed: int) -> Callable[..., ndarray]:
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.standard_normal(shape)


def some(*shape: int, seed: int = 5) -> ndarray:
    """Six pairs of ten; the first query sees nothing."""
    seen = np.random.default_rng(seed).random(shape) < 0.6
    seen[..., 0, :] = False
    return seen


def hiding(seen: ndarray) -> ndarray:
    return np.where(seen, drawing(6)(*seen.shape), -np.inf)


def given(name: str, N: int, M: int) -> Inputs:
    """What an attention takes, without masks; scores lie apart, so that weights differ."""
    draw = drawing(N + 10 * M)
    heads = (B,) if name.startswith("additive") else (B, H)
    width, keys = (Q, K) if name.startswith("additive") else (D, D)
    inputs = {
        "query": 2 * draw(*heads, N, width),
        "key": 2 * draw(*heads, M, keys),
        "value": draw(*heads, M, E),
    }
    if name.startswith("additive"):
        inputs |= {"w_query": draw(A, Q), "w_key": draw(A, K), "w_score": 2 * draw(A)}
    if name.startswith("transformer"):
        inputs |= {"position": draw(H, M, D), "u": draw(H, D), "v": draw(H, D)}
    if name.startswith("learned"):
        inputs |= {"key_pos_embeddings": draw(2 * P, H, D), "key_pos_bias": draw(2 * P, H)}
        inputs |= {"query_pos_bias": draw(H, D), "align": "start" if N == 3 else "end"}
    return inputs


def options(name: str, N: int, M: int) -> list[Inputs]:
    """Masks and draws that the attention knows."""
    heads = (B,) if name.startswith("additive") else (B, H)
    if "visible" in CATALOGUE[name].arguments:
        return [{}, {"visible": some(N, M)}, {"visible": some(B, 1, N, M)}]
    keep = np.random.default_rng(7).random((*heads, N, M)) < 0.7
    return [{}, {"mask": some(N, M)}, {"mask": hiding(some(*heads, N, M)), "keep": keep, "p": 0.3}]


def near(actual: Any, expected: Any, share: float = 1e-13, least: float = 1.0) -> bool:
    """Within so much of the largest number, or of the least that counts; and of one shape."""
    expected = np.array(expected, np.longdouble)
    size = np.abs(expected).max(initial=least)
    return actual.shape == expected.shape and bool(
        (np.abs(actual - expected) <= share * size).all()
    )


@COLUMNS
@each_size
@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_attention_is_its_formula(name: str, N: int, M: int, column: Any) -> None:
    for more in options(name, N, M):
        inputs = given(name, N, M) | more
        assert near(getattr(column, name)(**inputs), ATTENTIONS[name](long(inputs)))


@pytest.mark.parametrize(("N", "M"), [(2, 4), (3, 2)])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_gradient_is_the_derivative_of_the_formula(name: str, N: int, M: int) -> None:
    inputs = given(name, N, M) | options(name, N, M)[-1]
    weights = drawing(8)(*inputs["query"].shape[:-1], E)
    whole = {"d_output": weights} | inputs
    d_output = long(weights)
    expected = gradients(lambda x: [ATTENTIONS[name](x)], long(inputs), d_output)
    for column in (spec, numpy_ref):
        found = getattr(column, f"{name}_grad")(**whole)
        assert len(found) == len(expected)
        assert all(near(x, y) for x, y in zip(found, expected, strict=True))


def test_a_gradient_that_is_off_by_little_would_be_noticed() -> None:
    inputs, d_output = given("alibi_attention", 2, 2), drawing(8)(B, H, 2, E)
    attend = ATTENTIONS["alibi_attention"]
    _, expected, _ = gradients(lambda x: [attend(x)], long(inputs), long(d_output))
    assert not near(spec.alibi_attention_grad(d_output, **inputs)[1] * (1 + 1e-11), expected)


@COLUMNS
@each_size
def test_scores_are_their_formulas(N: int, M: int, column: Any) -> None:
    x = given("additive_attention", N, M)
    weights = [x[name] for name in ("w_query", "w_key", "w_score")]
    q, k = x["query"], x["key"]
    expected = [oracle.additive(*long([q[b], k[b]]), *long(weights)) for b in range(B)]
    assert near(column.additive_score(q, k, *weights), expected)
    for name, score in (
        ("scaled_dot_product_attention", lambda x, q, k, h: oracle.scaled(q, k)),
        (
            "transformer_xl_attention",
            lambda x, q, k, h: oracle.transformer_xl(
                q, k, *(x[table][h] for table in ("position", "u", "v"))
            ),
        ),
        (
            "learned_relative_attention",
            lambda x, q, k, h: oracle.learned(q, k, *oracle.tables_of(x, h)),
        ),
    ):
        x = {key: value for key, value in given(name, N, M).items() if key != "value"}
        wide = long(x)
        expected = [
            [score(wide, wide["query"][b, h], wide["key"][b, h], h) for h in range(H)]
            for b in range(B)
        ]
        assert near(getattr(column, name.replace("attention", "score"))(**x), expected)


@COLUMNS
@each_size
def test_softmax_and_dropout_are_their_formulas(N: int, M: int, column: Any) -> None:
    score, keep = 5 * drawing(9)(N, M), some(N, M, seed=8)
    for mask in (None, some(N, M), hiding(some(N, M))):
        s, seen = oracle.masked(long(score), long(mask))
        expected = [oracle.exponentials(*each) for each in zip(s, seen, strict=True)]
        assert near(column.softmax(score, mask), expected)
    expected = [
        [x / (1 - np.longdouble(0.3)) if kept else 0 for x, kept in zip(*rows, strict=True)]
        for rows in zip(long(score), keep, strict=True)
    ]
    assert near(column.dropout(score, keep, 0.3), expected)


@COLUMNS
@each_size
def test_shifts_move_numbers_as_their_code_does(N: int, M: int, column: Any) -> None:
    x = drawing(1)(N, M)
    assert column.shift_right(x).tolist() == oracle.shifted_right(x)
    assert column.rel_shift(x).tolist() == oracle.shifted_left(x)


@COLUMNS
def test_positions_and_slopes_are_their_formulas(column: Any) -> None:
    assert near(column.sinusoidal_positions(300, 6), oracle.sinusoidal_positions(300, 6), 1e-12)
    for heads in range(1, 41):
        assert near(column.get_slopes(heads), oracle.slopes(heads))
    assert near(column.get_alibi_biases(5, some(4, 7)), oracle.alibi_biases(5, some(4, 7)))


@COLUMNS
@pytest.mark.parametrize("stored_as", ["int8", "float8_e4m3fn"])
def test_every_byte_is_its_number_times_the_scale_of_its_row(stored_as: str, column: Any) -> None:
    stored = np.tile(np.arange(-128, 128, dtype=np.int8), (3, 1))
    scale = np.array([1.0, -0.3, 2.5])
    found = column.dequantize(stored, scale, stored_as)
    expected = np.array(oracle.dequantized(stored, scale, stored_as), np.longdouble)
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite) and finite.sum() >= 3 * 254
    assert near(found[finite], expected[finite])


@COLUMNS
@each_size
def test_a_latent_is_one_head_of_keys_and_values(N: int, M: int, column: Any) -> None:
    draw = drawing(N * M)
    shapes = {"query": (2, 3, N, 3), "query_rope": (2, 3, N, 2)}
    shapes |= {"latent": (2, M, 3), "key_rope": (2, M, 2)}
    call = {name: draw(*shape) for name, shape in shapes.items()} | {"sink": draw(3)}
    parts: Inputs = {name: long(x) for name, x in call.items()}
    expected = latent(parts | {"soft_cap": 1.5})
    found = column.latent_attention(**call, scale=5**-0.5, soft_cap=1.5, causal=True)
    assert all(near(one, other) for one, other in zip(found, expected, strict=True))


@COLUMNS
def test_pages_are_read_slot_by_slot_as_a_table_names_them(column: Any) -> None:
    draw, table, lengths = drawing(8), [[3, 0], [1, -9], [2, 2], [9, 9]], [5, 2, 4, 0]
    shapes = {"query": (7, 4, 2), "key_pages": (4, 3, 2, 2), "value_pages": (4, 3, 2, 5)}
    call = {name: draw(*shape) for name, shape in shapes.items()}
    call |= {"sink": draw(4), "query_starts": np.array([1, 3, 4, 6, 7])}
    tokens = [(table[b][j // 3], j % 3) for b in range(4) for j in range(lengths[b])]
    x: Inputs = {name: long(call[name]) for name in ("query", "sink")}
    x |= {n: long(np.array([call[f"{n}_pages"][at] for at in tokens])) for n in ("key", "value")}
    x |= {"query_starts": call["query_starts"], "key_starts": np.array([0, 5, 7, 11, 11])}
    expected = packed(x | {"soft_cap": 1.5})
    call |= {"page_table": np.array(table), "lengths": np.array(lengths)}
    found = column.paged_attention(**call, soft_cap=1.5, causal=True)
    assert all(near(one, other) for one, other in zip(found, expected, strict=True))


@COLUMNS
def test_a_row_sees_the_keys_that_no_option_hides(column: Any) -> None:
    recipes = {*draw_recipes("visible_keys", "any", 100, 3), *fixed_cases("visible_keys")}
    for recipe in recipes:
        if np.prod([*recipe.sizes.values()]) < 1500:
            given = expand(recipe, "bool")
            assert column.visible_keys(**given).tolist() == oracle.visible(**given).tolist()


@COLUMNS
@each_size
def test_masks_are_their_definitions(N: int, M: int, column: Any) -> None:
    assert column.causal_mask(N, M).tolist() == oracle.causal(N, M).tolist()
    hidden, padded = some(B * H, N, M), some(B, M)
    merged = column.merge_masks(hidden, padded, H)
    for b, h, i, j in np.ndindex(B, H, N, M):
        absent = hidden[b * H + h, i, j] or padded[b, j]
        assert merged[b, h, i, j] == (-np.inf if absent else 0)
