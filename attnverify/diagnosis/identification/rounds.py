"""
The rounds of questions: in which order, and of which recipes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from attnverify.catalogue.operation import Operation
from attnverify.inputs.fixed_cases import fixed_recipe as probe
from attnverify.inputs.recipe import Recipe


@dataclass(frozen=True)
class Round:
    """
    Recipes and the questions that they answer; ``label`` is added to these where they are asked
    again of other sizes.
    """

    questions: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    label: str = ""


def rounds(operation: Operation) -> Iterator[Round]:
    """Return the rounds of an operation; a question that it does not have is not asked."""
    make: Callable[..., Recipe] = lambda family="normal", mask=None, **sizes: probe(
        operation, sizes, family, mask
    )
    if "score" in operation.arguments:
        yield from masks(operation, make)
        return
    square = {"N": 6, "M": 6, "H": 4, "B": 2}
    core = (
        "scale",
        "ALiBi slopes",
        "ALiBi sign",
        "ALiBi place",
        "position shift",
        "u and v",
        "position scores",
        "table direction",
    )
    yield Round(
        (*core, "causal alignment", "keys without a mask"),
        (make(**square), make("identity", **square | {"E": 6})),
    )
    if operation.traits.slopes:
        yield Round(
            ("ALiBi slopes",),
            (make(N=6, M=6, H=6, B=1), make("identity", N=12, M=12, H=12, E=12)),
            ", H no power of two",
        )
    if "align" in operation.arguments:
        start = [
            replace(recipe, options=recipe.options | {"align": "start"})
            for recipe in (make(N=3, M=6), make(N=6, M=3))
        ]
        yield Round(("table alignment",), (make(N=3, M=6), make(N=6, M=3), *start))
    yield Round(("causal alignment", "keys without a mask", "position shift"), (make(N=3, M=7),))
    if "value" in operation.arguments:
        yield Round(
            ("causal alignment", "keys without a mask", "rows without keys"),
            (make(N=7, M=3), make(N=3, M=7)),
        )
        yield from masks(operation, make)
        if "keep" in operation.arguments:
            dropped = [replace(make(N=5, M=9), dropout={"p": p, "seed": 4}) for p in (0.25, 0.6)]
            yield Round(("dropout", "dropout scale"), tuple(dropped))


def masks(operation: Operation, make: Callable[..., Recipe]) -> Iterator[Round]:
    """Rounds with masks: some keys hidden, then all keys of some rows, then numbers to add."""
    some = {"pattern": "random", "axes": "N M", "form": "bool", "seed": 3}
    yield Round(
        ("mask polarity", "ALiBi distance"),
        (make(mask=some, N=2, M=12), make(mask=some | {"seed": 8}, N=2, M=12)),
    )
    none = some | {"pattern": "empty_rows", "seed": 5}
    full = some | {"pattern": "causal"}  # its last row sees no key where True means hidden
    yield Round(
        ("rows without keys",),
        (
            make(mask=none, N=7, M=9),
            make(mask=some | {"pattern": "nothing"}, N=3, M=4),
            make(mask=full, N=5, M=5),
        ),
    )
    if "mask" in operation.arguments:
        yield Round(
            ("float mask",),
            (
                make(mask=some | {"form": "finite"}, N=5, M=7),
                make(mask=some | {"form": "noisy"}, N=5, M=7),
            ),
        )
