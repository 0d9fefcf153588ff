"""What kernels get wrong at real sizes is drawn, as often as the book says."""

import json

import pytest

from attnverify import ROOT
from tests.sight.drawn import OF_CHECKS, OF_RECIPES, all_drawn

TOLD = ROOT / "docs" / "data" / "drawn.json"


@pytest.fixture(scope="module")
def drawn() -> dict[str, dict[str, list[int]]]:
    return all_drawn()


@pytest.mark.parametrize("words", [*OF_RECIPES, *OF_CHECKS])
def test_it_is_drawn_in_the_default_profile(
    words: str, drawn: dict[str, dict[str, list[int]]]
) -> None:
    assert min(drawn["default"][words]) >= 1


@pytest.mark.parametrize("words", list(OF_RECIPES)[-2:])
def test_what_is_required_of_tiles_is_drawn_in_the_quick_profile_too(
    words: str, drawn: dict[str, dict[str, list[int]]]
) -> None:
    """Of each attention, additive_attention and softmax, and their gradients."""
    assert drawn["quick"][words][1] >= 12


def test_the_book_tells_how_often_it_is_drawn_now(drawn: dict[str, dict[str, list[int]]]) -> None:
    """Otherwise: python -m tests.sight.drawn > docs/data/drawn.json"""
    assert json.loads(TOLD.read_text())["kinds"] == drawn
