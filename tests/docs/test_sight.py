"""The tables of what is noticed: whole, and what misses a goal is told."""

import sys

from attnverify import ROOT
from attnverify.catalogue.operation import CATALOGUE
from tests.sight.planted import factors_that_count

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from book import sight


def test_every_factor_of_every_operation_is_in_the_table() -> None:
    measured = {
        op.name: {words.split(" ", 2)[2] for words in found} for op, found in sight.factors()
    }
    for op in CATALOGUE.values():
        counted = () if op.traits.wide else factors_that_count(op)  # sight of two outputs: to come
        assert measured.get(op.name, set()) == set(counted), op.name


def test_what_misses_a_goal_is_told() -> None:
    told = "\n".join(sight.missed_goals())
    for op, words, _ in sight.missed():
        assert "\n     - ".join([sight.link(op.name), *words]) in told
    assert not sight.beyond(CATALOGUE["softmax"], "bfloat16", 0.001)
    assert sight.beyond(CATALOGUE["softmax"], "bfloat16", 0.0011)
    assert sight.beyond(CATALOGUE["softmax_grad"], "float16", None)
