"""Clauses of keys that are hidden by their own logit: minus infinity of an infinite factor."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given
from tests.support.random_arrays import all_close, close

from .heads import BACK, GROUPED, arriving, steep


def no_number(found: Any, key: ndarray, **_: Any) -> Any:
    """Twin: minus infinity taken from minus infinity, in a row that has nothing else."""
    lost = np.nan if np.isneginf(key).all() else 0.0
    return tuple(x + lost for x in found)


def weighed(found: Any, key: ndarray, value: ndarray, **_: Any) -> Any:
    """Twin: weight 0 times the value."""
    return found[0] + 0 * value[np.isneginf(key)].sum(), found[1]


def hidden_before_the_cap(key: ndarray, mask: Any = None, **_: Any) -> Any:
    """Twin: the score hides before it is bent."""
    return {"mask": ~np.isneginf(key).swapaxes(-1, -2) if mask is None else mask}


@clause(GROUPED, 9, false=[answering(GROUPED, no_number), answering(GROUPED, weighed),
                           given(GROUPED, hidden_before_the_cap)])  # fmt: skip
def a_logit_of_minus_infinity_hides_its_key(attention: Function) -> None:
    call = steep(1.0, -np.inf, 3.0)
    call["value"][0, 0, 1] = np.nan
    output, lse = attention(**call)
    seen = {"mask": np.array([[True, False, True]])}
    assert all_close((output, lse), spec.grouped_attention(**steep(1.0, 0.0, 3.0), **seen))
    alone = steep(-np.inf, -np.inf)
    alone["value"][:] = np.nan
    output, lse = attention(**alone)
    assert not output.any() and np.isneginf(lse).all()
    output, lse = attention(**alone, sink=np.array([4.0]))
    assert not output.any() and close(lse.item(), 4.0)
    output, lse = attention(**steep(-np.inf, -np.inf), soft_cap=2.0)
    assert close(output.item(), 1.5) and close(lse.item(), np.log(2.0) - 2.0)


def through_weight_zero(found: Any, key: ndarray, **_: Any) -> Any:
    """Twin: a gradient of 0 by the score times an infinite key."""
    return found[0] + (np.nan if np.isinf(key).any() else 0.0), *found[1:]


@clause(BACK, 4, false=answering(BACK, through_weight_zero))
def nothing_passes_a_pair_that_its_logit_hides(gradient: Function) -> None:
    call = arriving(3.0, 5.0, steep(1.0, -np.inf, sink=np.array([-np.inf])))
    call["value"][0, 0, 1] = np.nan
    d_query, d_key, d_value, _ = gradient(**call)
    assert close(d_query.item(), 5.0) and close(d_key.ravel(), [5.0, 0.0])
    assert close(d_value.ravel(), [3.0, 0.0])
    lost = arriving(3.0, 5.0, steep(-np.inf, sink=np.array([-np.inf])))
    assert not any(x.any() for x in gradient(**lost))
