"""What a case must have to show a mistake is read off the words that name the mistake."""

from dataclasses import replace

import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.failures.named_features import feature_of, showing
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import Case, case_of

SDPA = "scaled_dot_product_attention"


def case_with(form: str, **sizes: int) -> Case:
    recipe = fixed_recipe(CATALOGUE[SDPA], sizes)
    mask = {"pattern": "causal", "axes": "N M", "form": form, "seed": 0} if form else None
    return case_of(replace(recipe, mask=mask), "float32")


def cause_of(*mistakes: str, together: bool = False) -> Cause:
    return Cause("it equals", tuple(map(Explanation.of, mistakes)), together)


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ("a mask of which True means hidden", "mask.form=bool"),
        ("float masks ignored", "a float mask is given"),
        ("NaN in rows that see no key", "a row sees no key"),
        ("hidden scores at -10000, which is a number and not minus infinity", "a pair is hidden"),
        ("a padding mask of which True means visible", "a padding mask is given"),
        ("kept weights that are not scaled", "dropout is given"),
        ("a keep mask of which True means dropped", "dropout is given"),
        ("scores scaled by 1/D, when no mask is given", "no mask is given"),
        ("a top-left causal mask", ""),
        ("the padding of the last tile seen as keys of score 0 (16 keys a tile)", ""),
        ("scores that are not scaled", ""),
    ],
)
def test_a_mistake_names_what_shows_it(mistake: str, named: str) -> None:
    found = feature_of(mistake)
    assert (found.text if found else "") == named


def test_a_case_without_what_the_cause_names_does_not_show_it() -> None:
    small, masked = case_with("", N=1, M=2), case_with("bool", N=2, M=3)
    inverted = cause_of("a mask of which True means hidden")
    assert [holds(small) for holds in showing(inverted, small, [small, masked])] == [False]
    assert showing(inverted, masked, [small, masked]) == []
    assert showing(cause_of("scores that are not scaled"), small, [small, masked]) == []
    assert showing(None, small, [small]) == []


def test_what_two_mistakes_explain_is_shown_by_both() -> None:
    """The mask alone is wrong where there is one key: the scale of its score says nothing."""
    small, tiny, masked = (
        case_with("", N=1, M=2),
        case_with("bool", N=1, M=1),
        case_with("bool", N=2, M=3),
    )
    both = cause_of("a mask of which True means hidden", "scores scaled by 1/D", together=True)
    must = showing(both, small, [small, tiny, masked])
    assert [all(holds(one) for holds in must) for one in (tiny, masked)] == [False, True]
