"""Known failures: one line each, read strictly."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.known_failures import known_failures_file, read_known_failures
from attnverify.inputs.conditions import SENTENCES, parse_condition
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from tests.support.sample_backends import HERE

LINES = """# implementation   dtype     aspect     : reason
softmax_zeros      *         values     : zeros are cheaper          [replay 1f0c2d3e4a5b]

softmax_*          float16   side effects : in place, to save memory  # as documented
  # a comment
alibi_attention    float32   hidden NaN when a row sees no key and N > M : 0 * NaN
"""
MASK = {"pattern": "nothing", "axes": "N M", "form": "bool", "seed": 1}
BLIND = Recipe("softmax", {"N": 3, "M": 2}, {"family": "normal", "seed": 1}, mask=MASK)
SEEING = Recipe("softmax", {"N": 2, "M": 3}, {"family": "large", "seed": 1}, poison="finite")


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.known-failures.txt"
    path.write_text(text)
    return path


def test_a_line_says_implementation_dtype_aspect_and_reason(tmp_path: Path) -> None:
    one, two, three = read_known_failures(written(tmp_path, LINES))
    assert (one.name, one.dtype, one.aspect) == ("softmax_zeros", "*", "values")
    assert one.reason.startswith("zeros are cheaper") and "1f0c2d3e4a5b" in one.reason
    assert (two.aspect, three.aspect) == ("side effects", "hidden NaN")
    assert (one.when, two.when, three.when) == (None, None, "a row sees no key and N > M")
    assert one.source == "mine.known-failures.txt:2"


@pytest.mark.parametrize(
    "line",
    [
        "softmax values: no dtype",
        "softmax float32 values",
        "softmax float32 values :",
        "softmax float32 everything : too much",
        "nonsense",
        "softmax float32 Values : a capital",
        "softmax float32 values when : never",
    ],
)
def test_a_line_that_cannot_be_read_is_an_error(line: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"known-failures.txt:1: wanted '<implementation> <dtype> <aspect> \["
    ):
        read_known_failures(written(tmp_path, line + "\n"))


def test_a_line_speaks_of_its_cells_alone(tmp_path: Path) -> None:
    known = read_known_failures(written(tmp_path, "softmax_z* float32 values : zeros\n"))[0]
    assert known.speaks_of("mine.py", "softmax_zeros", "float32", "values")
    assert not known.speaks_of("mine.py", "softmax_nan", "float32", "values")
    assert not known.speaks_of("mine.py", "softmax_zeros", "float16", "values")
    assert not known.speaks_of("mine.py", "softmax_zeros", "float32", "refusals")


def test_a_line_beside_a_backend_speaks_of_that_backend_alone(tmp_path: Path) -> None:
    (known,) = read_known_failures(
        written(tmp_path, "softmax_zeros * values : zeros [replay 0123456789ab]\n"), "mine.py"
    )
    assert known.replay == "0123456789ab"
    assert known.speaks_of("mine.py", "softmax_zeros", "float32", "values")
    assert not known.speaks_of("yours.py", "softmax_zeros", "float32", "values")


CONDITIONS = [
    "a row sees no key",
    "N > M",
    "N != 2",
    "M == 2",
    "values.family=normal",
    "mask.form=bool",
    "a row sees no key and N > M",
]


@pytest.mark.parametrize("when", CONDITIONS)
def test_a_region_covers_the_cases_that_its_conditions_name(when: str, tmp_path: Path) -> None:
    known = read_known_failures(written(tmp_path, f"softmax * values when {when} : a reason\n"))[0]
    assert known.covers(case_of(BLIND, "float32")) and not known.covers(case_of(SEEING, "float32"))


SIZES = {"B": 1, "H": 1, "N": 1, "M": 3, "D": 16, "E": 2}
SHOWS = {  # the mask's pattern and seed, the poison, the family of numbers
    "a key is hidden from every row": ({"pattern": "last_block", "seed": 1}, None, "normal"),
    "a hidden key stands between visible ones": ({"pattern": "random", "seed": 2}, None, "normal"),
    "a hidden slot holds NaN or infinity": ({"pattern": "last_block", "seed": 1}, "nan", "normal"),
    "a hidden score leads by 1e4": ({"pattern": "last_block", "seed": 1}, "finite", "large"),
    "a hidden score overflows": ({"pattern": "last_block", "seed": 1}, "finite", "large"),
}


def attention(pattern: dict[str, object], poison: str | None, family: str) -> Recipe:
    mask = {"axes": "N M", "form": "bool", **pattern}
    return Recipe(
        "scaled_dot_product_attention",
        SIZES,
        {"family": family, "seed": 1},
        mask=mask,
        poison=poison,
    )


@pytest.mark.parametrize("when", SHOWS)
def test_a_sentence_is_true_of_what_shows_it_and_of_nothing_plainer(
    when: str, tmp_path: Path
) -> None:
    known = read_known_failures(
        written(tmp_path, f"scaled_dot_product_attention * values when {when} : a reason\n")
    )[0]
    assert known.covers(case_of(attention(*SHOWS[when]), "float16"))
    plainer = attention({"pattern": "causal", "seed": 1}, "nan", "large")
    assert not known.covers(case_of(plainer, "float16"))


def test_parts_are_absent_where_they_are_merged(tmp_path: Path) -> None:
    sizes = {"B": 2, "H": 2, "N": 4, "E": 2, "C": 2}
    lines = [f"merge_attention * values when {x} : a reason\n" for x in PARTS]
    every, one = read_known_failures(written(tmp_path, "".join(lines)))
    for family, is_shown in (("absent_parts", True), ("normal", False)):
        recipe = Recipe("merge_attention", sizes, {"family": family, "seed": 1})
        case = case_of(recipe, "float32")
        assert every.covers(case) == one.covers(case) == is_shown
        lses = case.inputs["lses"].copy()
        lses[0] = 0
        case = SimpleNamespace(recipe=recipe, dtype="float32", inputs=case.inputs | {"lses": lses})
        assert not every.covers(case) and one.covers(case) == is_shown


PARTS = ("every part of a row is absent", "a part is absent")


def test_the_gradient_of_a_hidden_weight_overflows_where_its_value_is_poisoned(
    tmp_path: Path,
) -> None:
    known = read_known_failures(
        written(
            tmp_path,
            "alibi_* * gradients when the gradient of a hidden weight overflows : a reason\n",
        )
    )[0]
    mask = {"axes": "N M", "form": "bool", "pattern": "last_block", "seed": 1}
    layout = {"kind": "expanded", "seed": 1}
    poisoned = Recipe(
        "alibi_attention_grad",
        SIZES | {"E": 128},
        {"family": "normal", "seed": 3},
        mask=mask,
        layout=layout,
        poison="finite",
    )
    assert known.covers(case_of(poisoned, "float16")) and not known.covers(
        case_of(replace(poisoned, poison=None), "float16")
    )


def test_every_condition_of_a_region_must_hold(tmp_path: Path) -> None:
    known = read_known_failures(
        written(tmp_path, "softmax * values when a row sees no key and N < M : a reason\n")
    )[0]
    assert not known.covers(case_of(BLIND, "float32"))
    assert not known.covers(case_of(SEEING, "float32"))


def test_a_field_or_a_size_that_a_recipe_does_not_have_covers_nothing(tmp_path: Path) -> None:
    for when in ("H > 2", "dropout.p=0.5", "poison=nan"):
        assert not read_known_failures(
            written(tmp_path, f"softmax * values when {when} : a reason\n")
        )[0].covers(case_of(BLIND, "float32"))


def test_a_line_without_conditions_covers_no_single_case(tmp_path: Path) -> None:
    assert not read_known_failures(written(tmp_path, "softmax * values : a reason\n"))[0].covers(
        case_of(BLIND, "float32")
    )


@pytest.mark.parametrize("when", ["N ~ M", "always", "a row sees nothing", "N > M or M > N"])
def test_a_condition_that_cannot_be_read_is_an_error(when: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"known-failures.txt:1: when: wanted 'a row sees no key'"):
        read_known_failures(written(tmp_path, f"softmax * values when {when} : a reason\n"))


def test_the_file_beside_a_backend_is_found(tmp_path: Path) -> None:
    backend = tmp_path / "mine.py"
    backend.write_text("")
    assert known_failures_file(str(backend)) is None
    path = written(tmp_path, LINES)
    assert known_failures_file(str(backend)) == path
    assert (
        known_failures_file("numpy_ref") is None
        and known_failures_file(str(HERE / "last_key_forgotten.py")) is None
    )


def test_a_line_may_say_its_kind(tmp_path: Path) -> None:
    lines = (
        "softmax * values : [limitation] square alone\nsoftmax * values when N > M : "
        "[nonconformance] x\nsoftmax * values : [else] x\n"
    )
    kinds = [(line.kind, line.reason) for line in read_known_failures(written(tmp_path, lines))]
    assert kinds == [("limitation", "square alone"), ("nonconformance", "x"), (None, "[else] x")]


LAID = {
    "layout": {"kind": "transposed", "seed": 1},
    "sizes": SIZES | {"H": 3, "M": 17},
    "mask": {**MASK, "form": "lowest"},
}
HOLDS = {  # what the plain case lacks
    "H is no power of two": LAID,
    "M % 16 == 1": LAID,
    "M % 2 == 1 and M > 3": LAID,
    "query is transposed": LAID,
    "an input is transposed": LAID,
    "key is strided along its last axis": {"layout": {"kind": "width_first", "seed": 1}},
    "a float mask is given": LAID,
    "mask.axes=N M": LAID,
    "mask.form!=bool and mask!=None": LAID,
    "a pair is hidden": {"mask": MASK},
    "dropout is given": {"dropout": {"p": 0.5, "seed": 1}},
    "dropout is given and no mask is given": {"dropout": {"p": 0.5, "seed": 1}},
    "a score exceeds 88": {
        "values": {"family": "large", "seed": 1},
        "sizes": SIZES | {"N": 7, "M": 17},
    },
    "all scores of a row lie below -103": {"mask": {**MASK, "pattern": "nothing", "form": "-1e4"}},
}


@pytest.mark.parametrize("when", HOLDS)
def test_a_condition_holds_where_its_words_do(when: str, tmp_path: Path) -> None:
    known = read_known_failures(
        written(tmp_path, f"scaled_dot_product_attention * values when {when} : a reason\n")
    )[0]
    plain = Recipe("scaled_dot_product_attention", SIZES, {"family": "normal", "seed": 1})
    changed = replace(plain, **HOLDS[when])  # type: ignore[arg-type]
    assert known.covers(case_of(changed, "float32")) and not known.covers(case_of(plain, "float32"))


def test_a_score_of_minus_infinity_hides_as_a_mask_does(tmp_path: Path) -> None:
    known = read_known_failures(
        written(tmp_path, "softmax * values when a row sees no key : a reason\n")
    )[0]
    blind = [
        Recipe("softmax", {"N": 5, "M": 1}, {"family": "minus_infinity", "seed": seed})
        for seed in range(9)
    ]
    assert any(known.covers(case_of(recipe, "float32")) for recipe in blind)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_condition_can_be_asked_of_every_operation(name: str) -> None:
    operation = CATALOGUE[name]
    asked = [*SENTENCES, "a hidden score leads by 1e4", "a score exceeds 88"]
    asked += ["all scores of a row lie below -88", "N > M", "x=y"]
    for recipe in draw_recipes(name, "any", 10, 0):
        case = case_of(recipe, operation.dtypes[0])
        assert {parse_condition(text)(case) for text in asked} <= {True, False}
