"""
Draws: the recipes that an operation is judged by, and the smallest that still fails.

First each choice is drawn evenly and from the seed alone, so that a few hundred recipes meet
everything, in every process alike (Hypothesis' own draws repeat each other and depend on the
modules that are loaded: that serves its search). All implementations of an operation are shown the
same recipes, so that what the specification says of them is computed once. Then Hypothesis hunts
for a failure with the same choices; where one is found, by either, it is made smaller, one part
after the other.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from math import gcd
from random import Random
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, INNER, Operation
from attnverify.inputs.fixed_cases import pair_count
from attnverify.inputs.poison import FOR_SOME
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.strategies import draw_recipe
from attnverify.options import PROFILES

FROM_SOME = "nan for some"
KINDS: dict[str, dict[str, Any]] = {
    "any": {},
    "nan": {"poison": ("nan", "inf"), "hiding": True},
    FROM_SOME: {"poison": tuple(FOR_SOME), "from_some": True},
}
"""
``nan`` hides some keys from every query and plants NaN or infinity there; ``nan for some`` hides
them from some queries alone.
"""

CASES = PROFILES
"""At least as many cases for each operation, implementation and dtype."""


@lru_cache(maxsize=256)
def draw_recipes(operation: str, kind: str, cases: int, seed: int) -> tuple[Recipe, ...]:
    """As many different recipes as asked for (or as there are), the same for the same seed."""
    rng, drawn = Random(f"{operation} {kind} {seed}"), dict[Recipe, None]()
    for _ in range(10 * cases):
        if len(drawn) < cases:
            drawn[draw_recipe(rng.choice, operation, **KINDS[kind])] = None
    return tuple(drawn)


def count_draws(operation: str, cases: int) -> int:
    """
    How many of so many cases an operation is drawn: a fourth for the gradient of a layer, and for
    one whose bound is derived.
    """
    op = CATALOGUE[operation]
    few = op.is_layer_gradient or (op.shares_keys and op.is_gradient)
    return max(10, cases // 4) if few else cases


def count_hidden(kind: str, cases: int) -> int:
    """How many of so many cases have NaN or infinity in what no row sees, or only some."""
    return max(6, cases // 10) if kind == FROM_SOME else max(10, cases // 4)


def draw_first_tenth(operation: str, profile: str, seed: int) -> tuple[Recipe, ...]:
    """Draw the first tenth of the profile's recipes, for checks that make several calls."""
    return draw_recipes(operation, "any", CASES[profile], seed)[: max(10, CASES[profile] // 10)]


def with_shapes_of(recipes: Sequence[Recipe], models: Sequence[Recipe]) -> tuple[Recipe, ...]:
    """The recipes in arrays shaped as those of the models, which take turns."""
    turns = zip(recipes, cycle(models), strict=False)
    return tuple(dict.fromkeys(_with_shape(recipe, model) for recipe, model in turns))


def _with_shape(recipe: Recipe, model: Recipe) -> Recipe:
    """The recipe's numbers and what they hide, in arrays of the model's shapes and dtypes."""
    parts: dict[str, Any] = {"sizes": model.sizes, "options": model.options}
    for name, kept in (("mask", ("axes", "form")), ("padding", ()), ("dropout", ("p", "axes"))):
        of_model = getattr(model, name)
        own = getattr(recipe, name) or of_model
        parts[name] = of_model and own | {key: of_model[key] for key in kept if key in of_model}
    return replace(recipe, **parts)


@lru_cache(maxsize=256)
def hypothesis_examples(operation: str, kind: str, cases: int, seed: int) -> tuple[Recipe, ...]:
    """
    Return the same recipes with Hypothesis choosing, those that it generates while none fails, kept
    so that every implementation is shown the same ones. Whoever draws none does not load it.
    """
    from hypothesis import HealthCheck, find, settings
    from hypothesis.errors import NoSuchExample
    from hypothesis.strategies import DrawFn, composite, sampled_from

    @composite
    def strategy(draw: DrawFn) -> Recipe:
        return draw_recipe(lambda options: draw(sampled_from(options)), operation, **KINDS[kind])

    tried: list[Recipe] = []

    def passes(recipe: Recipe) -> bool:
        tried.append(recipe)
        return False

    quiet = settings(
        max_examples=cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    with suppress(NoSuchExample):
        find(strategy(), passes, settings=quiet, random=Random(seed))
    return tuple(tried)


def shrink(
    failing: Sequence[Recipe],
    fails: Callable[[Recipe], bool],
    simpler: Callable[[Recipe], Iterator[Recipe]] | None = None,
) -> Recipe:
    """
    Find a small recipe that fails like the given ones: of the smallest, what can be left out or
    made smaller is, boldly first, or in the order of ``simpler``.
    """
    smallest, tried = min(failing, key=shrink_key), set(failing)
    while True:
        for recipe in (simpler or simpler_recipes)(smallest):
            if recipe not in tried and shrink_key(recipe) < shrink_key(smallest):
                tried.add(recipe)
                if fails(recipe):
                    smallest = recipe
                    break
        else:
            return smallest


def simpler_recipes(recipe: Recipe) -> Iterator[Recipe]:
    """Recipes with less in them: everything at once, then sizes and parts one after the other."""
    least = dict.fromkeys(recipe.sizes, 1)
    plain = without_parts(recipe)
    yield from (resized(plain, least), resized(recipe, least), plain)
    for letters in ("BHL", "DEFQKAPIGRJ", "N", "M", "NM", "T", "U", "TU", "C"):
        yield resized(recipe, {letter: 1 for letter in letters if letter in recipe.sizes})
    yield from one_part_less(recipe)
    for letter, size in recipe.sizes.items():
        yield from (
            resized(recipe, {letter: smaller})
            for smaller in (1, size // 2, size - 1)
            if 1 <= smaller < size
        )


def one_part_less(recipe: Recipe) -> Iterator[Recipe]:
    """Return the recipe without each of what it may be without."""
    op = CATALOGUE[recipe.operation]
    parts: dict[str, Any] = {"padding": None, "poison": None}
    if op.mask and op.allows_none(op.mask):
        parts["mask"] = None
    if "keep" in op.arguments and not op.requires("keep"):
        parts["dropout"] = None
    if INNER in recipe.sizes:
        parts["sizes"] = {a: size for a, size in recipe.sizes.items() if a != INNER}
    parts["layout"] = {"kind": "contiguous", "seed": 0}
    parts["values"] = recipe.values | {"family": "normal"}
    if recipe.options.get("lead"):
        parts["options"] = recipe.options | {"lead": ()}
    yield from (
        replace(recipe, **{name: part})
        for name, part in parts.items()
        if getattr(recipe, name) != part
    )
    yield from simpler_options(op, recipe)


def simpler_options(op: Operation, recipe: Recipe) -> Iterator[Recipe]:
    """Return the recipe without each of its options, and with each choice that is simpler."""
    for name, domain in op.domains.items():
        given = recipe.options.get(name)
        if given is None or op.requires(name):
            continue
        if not (domain.choices and domain.choices[0]):
            rest = {key: value for key, value in recipe.options.items() if key != name}
            yield replace(recipe, options=rest)
        seen = [*domain.choices, given]
        earlier = seen[: seen.index(given)]
        yield from (
            replace(recipe, options=recipe.options | {name: value}) for value in earlier if value
        )


def without_parts(recipe: Recipe) -> Recipe:
    """Return the recipe without all of that."""
    while (less := next(one_part_less(recipe), None)) is not None:
        recipe = less
    return recipe


def resized(recipe: Recipe, sizes: dict[str, int]) -> Recipe:
    """Return the recipe with other sizes, and with those that hang on them (:func:`draw_sizes`)."""
    op, old = CATALOGUE[recipe.operation], recipe.sizes
    new = old | sizes
    if op.outside is not None:  # its letters are its own
        return replace(recipe, sizes=op.outside.fitted(new))
    if op.traits.square and "M" in new:
        new["M"] = new["N"]
    if "F" in new and "H" in new and op.has_heads:
        width = new.get("D", max(new["F"] // old["H"], 1))
        new["F"] = new["H"] * (width + width % 2 * op.traits.even_width)
        new |= {"D": new["F"] // new["H"]} if "D" in new else {}
    elif "F" in new:
        new["F"] += new["F"] % 2 * op.traits.even_width
    if op.has_memory and {"N", "S", "M"} <= set(new):
        new["M"] = new["N"] + new["S"] * recipe.options.get("mems", True)
    if "G" in new:
        new["G"] = gcd(new["G"], new["H"])
    if "R" in new:
        new["D"] = max(new["D"], 2)
        new["R"] = min(new["R"], new["D"] // 2)
        if not recipe.options.get("rotary_dim", True):
            new["D"], new["R"] = new["D"] // 2 * 2, new["D"] // 2
    if "P" in new:
        new["P"] = max(new["P"], new.get("N", 1), new.get("M", 1))
    return replace(recipe, sizes=new)


def shrink_key(recipe: Recipe) -> tuple[int, int]:
    """Small geometry first, then few words."""
    product = 1
    for letter in recipe.sizes.keys() - {"P", "S"}:  # a table and a memory follow the others
        product *= max(recipe.sizes[letter], 1)
    return product, len(recipe.text)


TILES = (1, 16, 32, 64, 128, 256)
"""Up to which sizes of an axis a kernel takes one path: one element, a tile of so many, several."""


@lru_cache(maxsize=1024)
def features_of_call(recipe: Recipe) -> frozenset[tuple[Any, ...]]:
    """
    Tell what a kernel may have a path of its own for: each part of a call, its form, axes and
    place in memory, each option, each size by tiles; not which numbers.
    """
    return frozenset(_features(recipe))


def _features(recipe: Recipe) -> Iterator[tuple[Any, ...]]:
    for part in ("mask", "padding", "dropout"):
        given = getattr(recipe, part)
        yield part, given is None
        yield from (
            (part, key, given[key]) for key in ("form", "axes", "p") if key in (given or {})
        )
    yield "layout", recipe.layout["kind"]
    yield "poison", recipe.poison
    yield from (("option", key, _said(value)) for key, value in recipe.options.items())
    yield from ((letter, bisect_left(TILES, size)) for letter, size in recipe.sizes.items())


def _said(value: Any) -> str:
    """Say what an option is; of drawn numbers that they are there, not by which seed."""
    if not isinstance(value, dict):
        return str(value)
    return str({key: x for key, x in value.items() if key != "seed"})


def covering(recipes: Iterable[Recipe]) -> tuple[Recipe, ...]:
    """
    Choose recipes that have every feature which any of them has, those with most that is new and
    fewest pairs first; in their order.
    """
    offered = tuple(dict.fromkeys(recipes))
    left, chosen = {x for one in offered for x in features_of_call(one)}, set[Recipe]()
    while left:
        found = max(offered, key=lambda x: (len(left & features_of_call(x)), -pair_count(x)))
        chosen.add(found)
        left -= features_of_call(found)
    return tuple(recipe for recipe in offered if recipe in chosen)
