"""Clauses of merging parts."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import all_close, close

MERGE, BACK = "merge_attention", "merge_attention_grad"
Parts = dict[str, ndarray]


def parts(*lses: float, E: int = 2) -> Parts:
    """Parts of one row with these lses, and outputs that tell them apart."""
    C = len(lses)
    outputs = np.arange(1.0, C + 1)[:, None] ** np.arange(1, E + 1)
    return {
        "outputs": outputs.reshape(C, 1, 1, 1, E),
        "lses": np.array(lses).reshape(C, 1, 1, 1),
    }


def drawn(C: int = 4, seed: int = 0) -> Parts:
    rng = np.random.default_rng(seed)
    lses = rng.standard_normal((C, 2, 3, 2))
    lses[rng.random(lses.shape) < 0.3] = -np.inf
    return {"outputs": rng.standard_normal((C, 2, 3, 2, 5)), "lses": lses}


def multiplied(outputs: ndarray, lses: ndarray) -> Any:
    """Twin: the weights of all parts times all outputs, 0 * NaN included."""
    e = np.exp(lses - lses.max(0))
    w = e / e.sum(0)
    return (w[..., None] * outputs).sum(0), spec.merge_attention(np.zeros_like(outputs), lses)[1]


@clause(MERGE, 1, false=[multiplied, given(MERGE, lambda lses, **_: {"lses": np.maximum(lses, 0)})])
def an_absent_part_is_not_looked_at(merge: Function) -> None:
    call = parts(0.0, -np.inf, 0.0)
    for hidden in (np.nan, np.inf, 1e300):
        call["outputs"][1] = hidden
        output, lse = merge(**call)
        assert close(output.ravel(), [2.0, 5.0]) and close(lse.item(), np.log(2))


def instead(output: float, lse: float) -> Function:
    """Twin: other numbers where every part is absent."""

    def change(found: Any, lses: ndarray, **_: Any) -> Any:
        empty = (lses == -np.inf).all(0)
        return np.where(empty[..., None], output, found[0]), np.where(empty, lse, found[1])

    return answering(MERGE, change)


@clause(
    MERGE, 2, false=[instead(np.nan, -np.inf), instead(0, np.inf), instead(0, -5e4), instead(0, 0)]
)
def where_all_are_absent_the_row_is_an_absent_part(merge: Function) -> None:
    for C in (1, 2, 3):
        output, lse = merge(**parts(*[-np.inf] * C))
        assert (output == 0).all() and (lse == -np.inf).all()
        both = np.stack([output, output + 3]), np.stack([lse, np.zeros_like(lse)])
        with_one = merge(outputs=both[0], lses=both[1])
        assert (with_one[0] == 3).all() and (with_one[1] == 0).all()


def averaged(outputs: ndarray, lses: ndarray) -> Any:
    """Twin: two by two, the outputs averaged."""
    o, lse = outputs[0], lses[0]
    for c in range(1, len(lses)):
        _, lse = spec.merge_attention(np.stack([o, outputs[c]]), np.stack([lse, lses[c]]))
        o = (o + outputs[c]) / 2
    return o, lse


def first_wins(outputs: ndarray, lses: ndarray) -> Any:
    """Twin: an lse that is that of the largest part."""
    return spec.merge_attention(outputs, lses)[0], lses.max(0)


@clause(MERGE, 3, false=[averaged, first_wins])
def parts_are_merged_in_any_order_and_nesting(merge: Function) -> None:
    call = drawn()
    whole = merge(**call)
    turned = {name: x[::-1] for name, x in call.items()}
    assert all_close(merge(**turned), whole)
    inner = [merge(**{name: x[at] for name, x in call.items()}) for at in (slice(2), slice(2, 4))]
    nested = merge(**dict(zip(call, map(np.stack, zip(*inner, strict=True)), strict=True)))
    assert all_close(nested, whole)
    one = parts(-3.0)
    assert all_close(merge(**one), (one["outputs"][0], one["lses"][0]))


def base_two(outputs: ndarray, lses: ndarray) -> Any:
    o, lse = spec.merge_attention(outputs, lses * np.log(2.0))
    return o, lse / np.log(2.0)


def phantom(outputs: ndarray, lses: ndarray) -> Any:
    """Twin: a first part of lse -5e4 whose output is 0."""
    zero, low = np.zeros_like(outputs[:1]), np.full_like(lses[:1], -5e4)
    return spec.merge_attention(np.concatenate([zero, outputs]), np.concatenate([low, lses]))


@clause(MERGE, 4, false=[base_two, phantom])
def lse_is_a_natural_logarithm_at_any_height(merge: Function) -> None:
    weights = np.log([1.0, 3.0])
    for height in (0.0, 700.0, -1e5, 1e5):
        output, lse = merge(**parts(*(weights + height)))
        assert close(output.ravel(), [1.75, 3.25])
        assert close(lse.item(), height + np.log(4.0))


def lenient(outputs: ndarray, lses: ndarray) -> Any:
    return spec.merge_attention(outputs, np.where(lses < np.inf, lses, -np.inf))


@clause(MERGE, 5, false=lenient)
def what_is_no_lse_is_refused(merge: Function) -> None:
    for odd in (np.inf, np.nan):
        assert refuses(merge, "lses: wanted", **parts(0.0, odd))
    assert merge(**parts(0.0, -np.inf))[1].item() == 0


def as_narrow(outputs: ndarray, lses: ndarray) -> Any:
    return tuple(
        x.astype(outputs.dtype) for x in spec.merge_attention(outputs, lses.astype(outputs.dtype))
    )


@clause(MERGE, 6, false=as_narrow)
def a_log_sum_exp_beside_half_outputs_is_no_half(merge: Function) -> None:
    from attnverify.catalogue.operation import CATALOGUE

    call = parts(1000.25, 1000.25)
    _, lse = merge(outputs=call["outputs"].astype(np.float16), lses=call["lses"].astype(np.float32))
    assert close(lse.item(), 1000.25 + np.log(2), 1e-7)
    assert CATALOGUE[MERGE].dtype_of("lses", "float16") == "float32"
    assert CATALOGUE[MERGE].dtype_of_output(1, "bfloat16") == "float32"


def arriving(d_output: float, d_lse: float, call: Parts) -> Parts:
    shape = call["outputs"].shape[1:]
    return {"d_output": np.full(shape, d_output), "d_lse": np.full(shape[:-1], d_lse)} | call


def evenly(found: Any, d_lse: ndarray, lses: ndarray, **_: Any) -> Any:
    """Twin: what arrives at the lse in equal shares."""
    weights = np.exp(lses - spec.merge_attention(np.zeros((*lses.shape, 1)), lses)[1])
    return found[0], found[1] + d_lse * (1 / len(lses) - weights)


@clause(
    BACK,
    1,
    false=[given(BACK, lambda d_lse, **_: {"d_lse": 0 * d_lse}), answering(BACK, evenly)],
)
def what_arrives_at_the_lse_goes_to_the_lses_by_weight(gradient: Function) -> None:
    call = parts(0.0, np.log(3.0))
    d_outputs, d_lses = gradient(**arriving(0.0, 2.0, call))
    assert not d_outputs.any() and close(d_lses.ravel(), [0.5, 1.5])
    both = gradient(**arriving(1.0, 2.0, call))
    alone = gradient(**arriving(1.0, 0.0, call))
    assert close(both[1], alone[1] + d_lses) and close(both[0], alone[0])


def handed_through(found: Any, d_lse: ndarray, lses: ndarray, **_: Any) -> Any:
    """Twin: the whole of it to a row whose parts are all absent."""
    empty = (lses == -np.inf).all(0)
    return found[0], np.where(empty, d_lse, found[1])


def unmasked(found: Any, outputs: ndarray, lses: ndarray, **_: Any) -> Any:
    """Twin: 0 times what stands in an absent part."""
    return found[0], found[1] + 0 * outputs.sum(-1)


@clause(BACK, 2, false=[answering(BACK, handed_through), answering(BACK, unmasked)])
def an_absent_part_receives_nothing(gradient: Function) -> None:
    call = parts(0.0, -np.inf)
    call["outputs"][1] = np.nan
    d_outputs, d_lses = gradient(**arriving(3.0, 5.0, call))
    assert not d_outputs[1].any() and not d_lses[1].any() and d_lses[0].item() == 5.0
    for C in (1, 2):
        empty = parts(*[-np.inf] * C)
        empty["outputs"][:] = np.nan
        assert not any(x.any() for x in gradient(**arriving(3.0, 5.0, empty)))
