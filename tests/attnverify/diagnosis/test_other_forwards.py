"""Gradients of another forward: how many cases tell."""

import pytest

from attnverify.diagnosis.matching.other_forwards import Projection, find_other_forward
from attnverify.judge.observation import observe
from tests.attnverify.diagnosis.test_two_mistakes import SDPA, draws_of, implementation_of
from tests.attnverify.diagnosis.test_unmet_mistakes import recomputed


@pytest.mark.parametrize(("cases", "told"), [(2, False), (3, True)])
def test_two_cases_tell_no_other_forward(cases: int, told: bool) -> None:
    by_width = recomputed(lambda own: {"scale": 1 / own["query"].shape[-1]})
    own = implementation_of(f"{SDPA}_grad", by_width)
    plain = [c for c in draws_of(own)["wrong number"] if c.recipe.mask is None]
    seen = observe(own, sorted(plain, key=lambda c: sum(c.recipe.sizes.values()))[:8])
    telling = [o for o in seen if Projection(o, own.operation).sound][:cases]
    assert len(telling) == cases
    found = find_other_forward(own.operation, telling, [])
    assert (found is not None and "1/D" in str(found)) == told, found
