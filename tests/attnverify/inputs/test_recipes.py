"""Recipes: small plain data that says an input, and all that they must be able to say."""

import hashlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray

from attnverify.backends.array_libraries import numpy_library
from attnverify.catalogue.dtypes import largest, round_to
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.packing import pages_seen
from attnverify.catalogue.pytrees import leaves
from attnverify.catalogue.traits import DTYPES
from attnverify.inputs.expand import expand, expand_anew
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.masks import PATTERNS, draw_visible, visible_pairs
from attnverify.inputs.memory_layouts import LAYOUTS, arrange
from attnverify.inputs.real.calls import everyday_calls, far_calls
from attnverify.inputs.recipe import Inputs, Recipe, parse_recipe
from attnverify.inputs.sampling import (
    draw_recipes,
    hypothesis_examples,
    shrink,
    shrink_key,
    simpler_recipes,
)
from attnverify.inputs.strategies import (
    BLOCK_EDGES,
    HEADS,
    MASK_FORMS,
    WIDTHS,
)
from attnverify.inputs.value_families import FAMILIES
from attnverify.reference.oracle import evaluate_spec

SDPA, ALIBI, HEADED = "scaled_dot_product_attention", "alibi_attention", "multi_head_attention"
DRAWN = {
    SDPA: 300,
    f"{SDPA}_grad": 300,
    ALIBI: 200,
    HEADED: 300,
    "merge_masks": 200,
    "softmax": 60,
    "learned_relative_attention": 60,
}


@cache
def drawn(operation: str, kind: str = "any") -> tuple[Recipe, ...]:
    return draw_recipes(operation, kind, DRAWN.get(operation, 20), 1)


@cache
def with_heads() -> tuple[Recipe, ...]:
    """Recipes of the operations that share their geometry and their masks."""
    return (
        *drawn(SDPA),
        *drawn(f"{SDPA}_grad"),
        *drawn(ALIBI),
        *drawn("learned_relative_attention"),
    )


def arrays(inputs: Inputs) -> list[ndarray]:
    return [leaf for leaf in leaves(inputs) if isinstance(leaf, ndarray)]


@pytest.mark.parametrize("operation", CATALOGUE)
def test_a_recipe_survives_json(operation: str) -> None:
    for recipe in drawn(operation)[:60]:
        again = parse_recipe(recipe.text)
        assert again == recipe and again.hash == recipe.hash
        assert len(recipe.text.encode()) <= 600


@pytest.mark.parametrize("operation", CATALOGUE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_numbers_of_a_recipe_are_numbers_of_the_dtype(operation: str, dtype: str) -> None:
    """Of float32 at least where an argument is wider than the others, as a log-sum-exp is."""
    for recipe in drawn(operation)[:20]:
        for name, given in expand(recipe, dtype).items():
            own = CATALOGUE[operation].dtype_of(name, dtype)
            for x in arrays({name: given}):
                assert x.dtype.kind != "f" or np.array_equal(round_to(x, own), x, equal_nan=True)


@pytest.mark.parametrize("operation", CATALOGUE)
def test_an_expanded_recipe_is_read_only(operation: str) -> None:
    for recipe in drawn(operation)[:20]:
        assert not any(x.flags.writeable for x in arrays(expand(recipe, "float32")))


@pytest.mark.parametrize("operation", CATALOGUE)
def test_a_recipe_always_expands_to_the_same_bytes(operation: str) -> None:
    for recipe in drawn(operation)[:20]:
        once, again = (arrays(expand_anew(recipe, "float32")) for _ in range(2))
        assert [x.tobytes() for x in once] == [x.tobytes() for x in again]


@pytest.mark.parametrize("operation", CATALOGUE)
def test_what_is_drawn_is_a_right_call(operation: str) -> None:
    for recipe in draw_recipes(operation, "any", 60, 2):
        CATALOGUE[operation].reference(**expand(recipe, "float64"))


FINGERPRINT = """
import hashlib, sys
from attnverify.inputs.sampling import draw_recipes
from attnverify.inputs.expand import expand, expand_anew
recipes = draw_recipes("scaled_dot_product_attention", "any", 20, 5)
values = (x for r in recipes for x in expand(r, "float32").values())
bytes_of = b"".join(x.tobytes() for x in values if hasattr(x, "tobytes"))
print([r.hash for r in recipes], hashlib.sha256(bytes_of).hexdigest())
"""


def test_every_process_draws_and_expands_alike() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    recipes = draw_recipes(SDPA, "any", 20, 5)
    own = b"".join(
        x.tobytes()
        for r in recipes
        for x in expand(r, "float32").values()
        if isinstance(x, ndarray)
    )
    assert (
        texts[0] == texts[1] == f"{[r.hash for r in recipes]} {hashlib.sha256(own).hexdigest()}\n"
    )


def test_another_seed_draws_other_recipes() -> None:
    assert draw_recipes(SDPA, "any", 20, 5) != draw_recipes(SDPA, "any", 20, 6)


@pytest.mark.parametrize("operation", CATALOGUE)
def test_as_many_different_recipes_are_drawn_as_asked_for(operation: str) -> None:
    assert len(set(draw_recipes(operation, "any", 100, 0))) == 100


def test_a_small_case_expands_quickly() -> None:
    def seconds(recipe: Recipe) -> float:
        start = time.perf_counter()
        expand_anew(recipe, "float32")
        return time.perf_counter() - start

    median = statistics.median(
        seconds(recipe) for operation in CATALOGUE for recipe in drawn(operation)[:20]
    )
    print(f"median expansion {1000 * median:.2f} ms")
    assert median < 0.05  # 2 ms by design, with room for a machine under load


@pytest.mark.parametrize(
    "operation", [name for name, operation in CATALOGUE.items() if operation.axes]
)
def test_values_are_diverse(operation: str) -> None:
    given = [x for recipe in drawn(operation)[:20] for x in arrays(expand(recipe, "float64"))]
    assert (
        max(np.unique(x).size / x.size for x in given if x.dtype.kind == "f" and x.size > 30) > 0.99
    )


# What inputs.md asks for, each by a predicate on a recipe. ``sizes`` are the recipe's.

Feature = Callable[[Recipe], bool]


def of_sizes(condition: str) -> Feature:
    return lambda recipe: bool(eval(condition, dict(recipe.sizes)))


def of_mask(**wanted: Any) -> Feature:
    return lambda recipe: recipe.mask is not None and wanted.items() <= recipe.mask.items()


def empty_rows(recipe: Recipe) -> int:
    """How many rows of the case see no key."""
    visible = visible_pairs(CATALOGUE[recipe.operation], expand(recipe, "float32"))
    assert visible is not None
    return int((~visible.any(axis=-1)).sum())


def hidden_by(recipe: Recipe) -> tuple[ndarray, ndarray]:
    """What attn_mask and key_padding_mask alone let each row see."""
    inputs = expand(recipe, "float32")
    operation = CATALOGUE[recipe.operation]
    alone = [
        visible_pairs(operation, inputs | {name: None})
        for name in ("key_padding_mask", "attn_mask")
    ]
    assert alone[0] is not None and alone[1] is not None
    return alone[0], alone[1]


def merge_empties_a_row(recipe: Recipe) -> bool:
    """Each mask alone leaves a key to some row, both together none."""
    if recipe.mask is None or recipe.padding is None:
        return False
    by_mask, by_padding = hidden_by(recipe)
    both = by_mask & by_padding
    return bool((by_mask.any(-1) & by_padding.any(-1) & ~both.any(-1)).any())


def full_padding(recipe: Recipe) -> bool:
    padding = expand(recipe, "float32")["key_padding_mask"]
    return padding is not None and bool(padding.all(axis=-1).any())


def crossed(recipe: Recipe) -> bool:
    return (
        None not in (recipe.mask, recipe.dropout, recipe.poison)
        and recipe.layout["kind"] != "contiguous"
    )


SIZES = (
    "N < M",
    "N > M",
    "N == 1 < M",
    "M == 1 < N",
    "N >= 16 * M",
    "M >= 16 * N",
    "N == M > 1",
    "N == 13",
    "M == 7",
)
SHAPES = (*SIZES, "H == M + 1", "B != H", "B == 1", "B > 1", "E != D", "E == D")
EDGES = [f"{letter} == {edge}" for letter in "NM" for edge in BLOCK_EDGES]
HEADED_SIZES = (
    [f"H == {H}" for H in HEADS] + [f"D == {D}" for D in WIDTHS] + [f"E == {E}" for E in WIDTHS]
)


@pytest.mark.parametrize("condition", [*SHAPES, *EDGES, *HEADED_SIZES])
def test_this_geometry_is_drawn(condition: str) -> None:
    assert any(of_sizes(condition)(recipe) for recipe in with_heads())


@pytest.mark.parametrize(
    ("form", "axes"), list(product(MASK_FORMS, ("N M", "B H N M", "B 1 N M", "B 1 1 M", "1 H N M")))
)
def test_this_mask_is_drawn(form: str, axes: str) -> None:
    assert any(of_mask(form=form, axes=axes)(recipe) for recipe in with_heads())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_this_pattern_is_drawn(pattern: str) -> None:
    assert any(of_mask(pattern=pattern)(recipe) for recipe in drawn(SDPA))


@pytest.mark.parametrize("axes", ["B H N M", "1 H N M", "B 1 N M"])
def test_a_mask_differs_where_its_axes_do(axes: str) -> None:
    masks = [
        expand(recipe, "float32")["mask"]
        for recipe in (*drawn(SDPA), *drawn(f"{SDPA}_grad"))
        if of_mask(axes=axes)(recipe)
    ]
    assert any(not np.array_equal(x[0, 0], x[-1, -1]) for x in masks)


@pytest.mark.parametrize("operation", ["multi_head_attention", "merge_masks"])
@pytest.mark.parametrize("axes", ["N M", "B*H N M"])
@pytest.mark.parametrize("form", MASK_FORMS)
def test_this_attn_mask_is_drawn(operation: str, axes: str, form: str) -> None:
    assert any(of_mask(axes=axes, form=form)(recipe) for recipe in drawn(operation))


ROWS: dict[str, tuple[str, Feature]] = {
    "no mask": (SDPA, lambda recipe: recipe.mask is None),
    "a row emptied by the mask": (SDPA, lambda recipe: empty_rows(recipe) > 0),
    "every row empty": (SDPA, of_mask(pattern="nothing", form="bool")),
    "a row emptied by N > M": (
        ALIBI,
        lambda recipe: recipe.mask is None and empty_rows(recipe) > 0,
    ),
    "a batch element that is all padding": (HEADED, full_padding),
    "a row emptied by the merge of two masks": (HEADED, merge_empties_a_row),
    "the first block hidden": (
        SDPA,
        lambda r: of_mask(pattern="first_block")(r) and r.sizes["M"] > 16,
    ),
    "the last block hidden": (
        SDPA,
        lambda r: of_mask(pattern="last_block")(r) and r.sizes["M"] > 16,
    ),
    "finite poison": (SDPA, lambda recipe: recipe.poison == "finite"),
    "all options at once": (SDPA, crossed),
    "all options at once, in a gradient": (f"{SDPA}_grad", crossed),
    "a mask beside the causal one": (ALIBI, lambda recipe: recipe.mask is not None),
    "both masks": (HEADED, lambda recipe: None not in (recipe.mask, recipe.padding)),
    "scores of minus infinity": (
        "softmax",
        lambda recipe: bool(np.isneginf(expand(recipe, "float32")["score"]).any()),
    ),
    "a keep mask with p = 0": (
        SDPA,
        lambda recipe: recipe.dropout is not None and recipe.dropout["p"] == 0,
    ),
    "the table read from its start": (
        "learned_relative_attention",
        lambda recipe: recipe.options["align"] == "start",
    ),
    "the table read from its end": (
        "learned_relative_attention",
        lambda recipe: recipe.options["align"] == "end",
    ),
    "a mask in a gradient that all heads share": (
        f"{SDPA}_grad",
        of_mask(axes="B 1 N M", form="noisy"),
    ),
}


@pytest.mark.parametrize("feature", ROWS)
def test_this_feature_is_drawn(feature: str) -> None:
    operation, holds = ROWS[feature]
    assert any(holds(recipe) for recipe in drawn(operation))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.75, 0.9])
def test_this_dropout_is_drawn(p: float) -> None:
    assert any(recipe.dropout is not None and recipe.dropout["p"] == p for recipe in drawn(SDPA))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_drawn_by_some_operation_or_stands_in_a_fixed_case(family: str) -> None:
    fixed = [
        recipe.values["family"]
        for name, operation in CATALOGUE.items()
        for recipe in (
            *fixed_cases(name),
            *far_calls(operation, "default"),
            *everyday_calls(name, "default", 0),
        )
    ]
    assert family in {*fixed, *(each for one in CATALOGUE.values() for each in one.families)}


@pytest.mark.parametrize("family", CATALOGUE[f"{SDPA}_grad"].families)
def test_a_gradient_meets_every_family(family: str) -> None:
    assert any(recipe.values["family"] == family for recipe in drawn(f"{SDPA}_grad"))


@pytest.mark.parametrize(("poison", "holds"), [("nan", np.isnan), ("inf", np.isinf)])
@pytest.mark.parametrize("operation", ["learned_relative_attention", SDPA, "softmax"])
def test_poison_stands_in_hidden_slots(operation: str, poison: str, holds: Any) -> None:
    recipes = [
        recipe for recipe in draw_recipes(operation, "nan", 60, 1) if recipe.poison == poison
    ]
    given = [
        (name, x)
        for recipe in recipes
        for name, x in expand(recipe, "float32").items()
        if isinstance(x, ndarray)
    ]
    planted = {name for name, x in given if holds(x).any()}
    tables = {"key_pos_embeddings", "key_pos_bias"} if operation.startswith("learned") else set()
    assert planted - {"mask", "visible"} == (
        {"score"} if operation == "softmax" else {"key", "value"} | tables
    )


def test_poison_never_stands_where_someone_looks() -> None:
    for recipe in draw_recipes(SDPA, "nan", 60, 1):
        inputs = expand(recipe, "float32")
        visible = visible_pairs(CATALOGUE[SDPA], inputs)
        assert visible is not None and np.isfinite(inputs["value"][visible.any(axis=-2)]).all()


@pytest.mark.parametrize("kind", ["contiguous", "mixed", *LAYOUTS])
def test_this_layout_is_drawn_or_stands_in_a_fixed_case(kind: str) -> None:
    recipes = (*drawn(SDPA), *fixed_cases(SDPA))
    assert any(recipe.layout["kind"] == kind for recipe in recipes)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_keeps_the_numbers_and_not_the_memory(kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32).astype(np.float64)
    x = np.broadcast_to(x[:, :1], x.shape).copy() if kind == "expanded" else x
    laid = arrange(numpy_library().from_numpy, x, "float32", kind)
    assert np.array_equal(laid, x)
    assert laid.strides != x.astype(np.float32).strides or laid.base is not None
    assert (0 in laid.strides) == (kind == "expanded") and (min(laid.strides) < 0) == (
        kind == "reversed"
    )


@pytest.mark.parametrize("kind", ["transposed", "packed", "offset", "expanded"])
def test_torch_has_the_layout_too(kind: str) -> None:
    x = np.broadcast_to(np.random.default_rng(0).standard_normal((2, 1, 5, 4)), (2, 3, 5, 4))
    laid = arrange(lambda a, dtype: torch.from_numpy(np.array(a)), x, "float64", kind)
    assert np.array_equal(laid.numpy(), x)
    assert not laid.is_contiguous() or laid.storage_offset() > 0


@pytest.mark.parametrize(
    ("family", "dtype", "size"),
    [("large", "float32", 88), ("brink", "float16", 4e3), ("huge_values", "float32", 1e3)],
)
def test_a_family_reaches_its_size(family: str, dtype: str, size: float) -> None:
    recipe = Recipe(
        SDPA, {"B": 1, "H": 2, "N": 16, "M": 16, "D": 16, "E": 4}, {"family": family, "seed": 1}
    )
    inputs = expand(recipe, dtype)
    score = inputs["query"] @ inputs["key"].mT / 4
    assert np.abs(inputs["value"] if family == "huge_values" else score).max() > size


def test_needles_point_at_the_frontier() -> None:
    recipe = Recipe(
        ALIBI,
        {"B": 1, "H": 1, "N": 200, "M": 200, "D": 16, "E": 4},
        {"family": "needles", "seed": 1},
    )
    inputs = expand(recipe, "float32")
    offset = np.argmax(inputs["query"] @ inputs["key"].mT, axis=-1) - np.arange(200)
    assert {-1, 0, 1} <= set(offset.ravel().tolist())


def test_the_lowest_number_of_the_dtype_stands_in_masks() -> None:
    mask = {"pattern": "random", "axes": "N M", "form": "lowest", "seed": 1}
    recipe = Recipe("softmax", {"N": 5, "M": 7}, {"family": "normal", "seed": 1}, mask=mask)
    assert expand(recipe, "float16")["mask"].min() == -largest("float16")


@pytest.mark.parametrize("operation", CATALOGUE)
def test_probes_meet_every_operation(operation: str) -> None:
    found = fixed_cases(operation)
    assert len(found) >= 2
    assert all(recipe.operation == operation for recipe in found)


@pytest.mark.parametrize("condition", ["M >= 3", "N > 1", "H == 2", "D > 4", "B == 2"])
def test_shrinking_ends_at_small_geometry(condition: str) -> None:
    failing = next(r for r in drawn(SDPA) if of_sizes(condition)(r) and shrink_key(r)[0] > 10_000)
    smallest = shrink([failing], of_sizes(condition))
    assert of_sizes(condition)(smallest)
    assert shrink_key(smallest)[0] <= 7


def test_shrinking_drops_what_does_not_matter() -> None:
    failing = next(r for r in drawn(SDPA) if crossed(r))
    smallest = shrink([failing], lambda recipe: recipe.dropout is not None)
    assert (
        smallest.poison is None
        and smallest.layout["kind"] == "contiguous"
        and smallest.values["family"] == "normal"
    )


def test_shrinking_of_what_fails_everywhere_takes_one_attempt() -> None:
    failing = next(r for r in drawn(SDPA) if crossed(r))
    tried = list[Recipe]()
    smallest = shrink([failing], lambda recipe: not tried.append(recipe))
    assert smallest == tried[0] and set(smallest.sizes.values()) == {1}


@pytest.mark.parametrize("operation", CATALOGUE)
def test_what_shrinking_tries_are_calls_that_the_specification_takes(operation: str) -> None:
    small = min(drawn(operation)[:3], key=shrink_key)
    for recipe in simpler_recipes(small):
        evaluate_spec(CATALOGUE[operation], expand(recipe, "float64"))


def test_a_recipe_is_read_by_people() -> None:
    recipe = Recipe("softmax", {"N": 3, "M": 5}, {"family": "normal", "seed": 1})
    assert re.match(
        "softmax: layout kind=contiguous seed=0, sizes M=5 N=3, values family=normal seed=1",
        str(recipe),
    )
    assert json.loads(recipe.text)["sizes"] == {"M": 5, "N": 3}


def test_the_hunt_is_the_same_for_every_implementation_and_moves_with_the_seed() -> None:
    tried = hypothesis_examples(SDPA, "any", 10, 5)
    hypothesis_examples.cache_clear()
    assert (
        tried == hypothesis_examples(SDPA, "any", 10, 5) != hypothesis_examples(SDPA, "any", 10, 6)
        and len(tried) == 10
    )


def test_a_page_stands_twice_in_a_row_of_some_tables() -> None:
    drawn = (expand(each, "float64") for each in draw_recipes("paged_attention", "any", 40, 0))
    seen = [(x["page_table"], pages_seen(x)) for x in drawn]
    again = [any(len({*row[own]}) < own.sum() for row, own in zip(*x, strict=True)) for x in seen]
    assert 3 <= sum(again) <= 20


def test_a_real_call_under_a_mask_has_something_to_see_in_its_last_row() -> None:
    """What hides all of a tile hides what is wrong there."""
    names = [name for name, op in CATALOGUE.items() if op.is_attention and not op.traits.parameters]
    blind = []
    for name, seed in product(names, range(6)):
        for recipe in everyday_calls(name, "quick", seed):
            sizes = {letter: recipe.sizes.get(letter, 1) for letter in "BHNM"}
            if (
                recipe.mask
                and not draw_visible(recipe.mask, recipe.mask["axes"], sizes)[..., -1, :].any()
            ):
                blind.append(recipe.text)
    assert not blind


def test_real_calls_of_packed_sequences_are_bounded_in_two_gigabytes() -> None:
    """The bound has each pair of all sequences: by 13 million of them it takes twelve."""
    packed = [name for name, op in CATALOGUE.items() if op.is_packed and "U" in op.sizes]
    calls = [r for name in packed for seed in range(4) for r in everyday_calls(name, "quick", seed)]
    assert len(calls) > 50
    assert max(r.sizes["T"] * r.sizes["U"] * r.sizes.get("H", 1) for r in calls) <= 4e6


@pytest.mark.parametrize("operation", ["latent_attention", "latent_attention_grad"])
def test_latents_are_called_as_wide_as_those_of_models(operation: str) -> None:
    for profile in ("quick", "default", "thorough"):
        for few in (True, False):
            calls = everyday_calls(operation, profile, 0, few=few)
            assert [call for call in calls if (call.sizes["E"], call.sizes["D"]) == (512, 64)]
