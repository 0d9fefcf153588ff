"""Clauses of a stack of Transformer-XL's layers and of its gradient."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from attnverify.spec import layers
from tests.spec.clauses.projections import B, F, H, N, drawn
from tests.spec.clauses.registry import Function, answering, clause, given, patched, refuses
from tests.spec.clauses.xl_layer import parameters_of
from tests.spec.derivatives import derivative
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
STACK, GRADIENT = "transformer_xl", "transformer_xl_grad"
L, S = 2, 2
LAYERS = [parameters_of(fed=True, seed=1), parameters_of(seed=2)]


def stack(**options: Any) -> Inputs:
    x, *mems = normals((B, N, F), *[(B, S, F)] * L)
    inputs = {"x": x, "parameters": LAYERS, "num_heads": H, "mems": mems, "mem_len": 4}
    return inputs | options


def layer_by_layer(
    x: ndarray, parameters: Any, mems: Any, keep: Any = None, p: float = 0.0, **_: Any
) -> list[ndarray]:
    """What each layer is given, and the output."""
    M = x.shape[1] + (0 if mems is None else mems[0].shape[1])
    position, found = spec.sinusoidal_positions(M, F), [x]
    for layer, weights in enumerate(parameters):
        mem = None if mems is None else mems[layer]
        kept = None if keep is None else keep[layer]
        found.append(
            spec.transformer_xl_layer(found[-1], position, weights, H, mem, keep=kept, p=p)
        )
    return found


def of_the_segment_alone(M: int, width: int) -> ndarray:
    """Twin: the distances count from the segment, so that a memory has none."""
    return spec.sinusoidal_positions(M, width) * (np.arange(M)[:, None] >= M - N)


def nearest_first(M: int, width: int) -> ndarray:
    return spec.sinusoidal_positions(M, width)[::-1]


@clause(
    STACK,
    1,
    false=[
        given(STACK, lambda parameters, **_: {"parameters": [parameters[0]] * len(parameters)}),
        given(STACK, lambda parameters, **_: {"parameters": parameters[::-1]}),
        patched(STACK, layers, "sinusoidal_positions", of_the_segment_alone),
        patched(STACK, layers, "sinusoidal_positions", nearest_first),
    ],
)
def each_layer_has_a_mapping_and_all_share_the_positions(layer: Function) -> None:
    for mems in (stack()["mems"], None):
        call = stack(mems=mems)
        assert close(layer(**call)[0], layer_by_layer(**call)[-1])
    assert refuses(layer, "mems: wanted", **stack(parameters=LAYERS[:1]))


def remembering_outputs(found: Any, **call: Any) -> Any:
    hids = layer_by_layer(**call)
    return found[0], spec.update_mems(hids[1:], call["mems"], call["mem_len"])


def remembering_the_input(found: Any, x: ndarray, mems: Any, mem_len: int, **_: Any) -> Any:
    return found[0], spec.update_mems([x] * L, mems, mem_len)


@clause(
    STACK,
    2,
    false=[answering(STACK, remembering_outputs), answering(STACK, remembering_the_input)],
)
def the_memory_of_a_layer_holds_its_inputs(layer: Function) -> None:
    call = stack()
    _, mems = layer(**call)
    hids = layer_by_layer(**call)[:-1]
    assert len(mems) == L
    for new, old, hid in zip(mems, call["mems"], hids, strict=True):
        assert close(new, np.concatenate([old, hid], axis=1)[:, -4:])


def forgetting(mems: Any, **_: Any) -> Inputs:
    return {"mems": None if mems is None else [mem[:, :0] for mem in mems]}


def zeros_are_none(mems: Any, **_: Any) -> Inputs:
    """Twin: a memory of zeros is no memory."""
    empty = mems is not None and not any(mem.any() for mem in mems)
    return {"mems": [mem[:, :0] for mem in mems] if empty else mems}


@clause(STACK, 3, false=[given(STACK, forgetting), given(STACK, zeros_are_none)])
def segment_by_segment_equals_one_long_segment(layer: Function) -> None:
    x = normals((B, 6, F))[0]
    whole = layer(**stack(x=x, mems=None))[0]
    for cuts in ([3], [1, 4], [1, 2, 3, 4, 5]):
        mems, outputs = [x[:, :0]] * L, []
        for segment in np.split(x, cuts, axis=1):
            output, mems = layer(**stack(x=segment, mems=mems, mem_len=6))
            outputs.append(output)
        assert close(np.concatenate(outputs, axis=1), whole, within=1e-11)
    zeros = stack(mems=spec.init_mems(L, S, B, F))
    assert close(layer(**zeros)[0], layer_by_layer(**zeros)[-1])
    assert not close(layer(**zeros)[0], layer(**stack(mems=None))[0], within=1e-3)


def memory_of_the_segment(found: Any, x: ndarray, mems: Any, **_: Any) -> Any:
    return found[0], [x] * L if mems is None else found[1]


def full_of_zeros(mems: Any, mem_len: int, **_: Any) -> Inputs:
    return {"mems": spec.init_mems(L, mem_len, B, F) if mems is None else mems}


@clause(STACK, 4, false=[answering(STACK, memory_of_the_segment), given(STACK, full_of_zeros)])
def without_a_memory_there_is_no_new_one(layer: Function) -> None:
    output, mems = layer(**stack(mems=None))
    assert mems is None and close(output, layer_by_layer(**stack(mems=None))[-1])
    assert layer(**stack())[1] is not None


def one_draw_for_all(keep: Any, **_: Any) -> Inputs:
    return {"keep": keep[:1] if keep.ndim == 5 else keep}


@clause(
    STACK,
    5,
    false=[
        given(STACK, one_draw_for_all),
        given(STACK, lambda keep, **_: {"keep": keep[::-1] if keep.ndim == 5 else keep}),
        given(STACK, lambda keep, **_: {"keep": keep if keep.ndim == 5 else keep[:1]}),
        given(STACK, lambda **_: {"keep": None, "p": 0.0}),
    ],
)
def each_layer_has_a_draw_of_its_own(layer: Function) -> None:
    whole = drawn(L, B, H, N, N + S)
    for keep in (whole, whole[:1], whole[0], whole[:, :, :1], whole[0, 0, 0]):
        apart = np.broadcast_to(keep, whole.shape)
        call = stack(p=0.25)
        assert close(layer(**call, keep=keep)[0], layer_by_layer(**call, keep=apart)[-1])


def arriving(call: Inputs, number: float = 0.0) -> Inputs:
    mems = call["mems"]
    new = None if mems is None else spec.update_mems([call["x"]] * L, mems, call["mem_len"])
    d_new = None if new is None else [np.full_like(x, number) for x in new]
    return {"d_output": normals((B, N, F), seed=3)[0], "d_new_mems": d_new}


def layers_in_the_order_of_the_way_back(found: Any, **_: Any) -> Any:
    return found[0], found[1][::-1], *found[2:]


def through_the_last_layer_alone(found: Any, d_output: ndarray, **call: Any) -> Any:
    *_, last, _ = layer_by_layer(**call)
    position = spec.sinusoidal_positions(N + S, F)
    mem = call["mems"][-1]
    inputs = (last, position, call["parameters"][-1], H, mem)
    return spec.transformer_xl_layer_grad(d_output, *inputs)[0], *found[1:]


@clause(
    GRADIENT,
    1,
    false=[
        answering(GRADIENT, layers_in_the_order_of_the_way_back),
        answering(GRADIENT, through_the_last_layer_alone),
        answering(GRADIENT, lambda found, **_: (found[0], found[1][-1:], *found[2:])),
    ],
)
def the_gradient_goes_from_the_last_layer_to_the_first(gradient: Function) -> None:
    call = stack()
    d = arriving(call)
    found = gradient(**d, **call)
    assert close(found[0], derivative(STACK, call, "x", d["d_output"]))
    d_hidden, position = d["d_output"], spec.sinusoidal_positions(N + S, F)
    given = layer_by_layer(**call)
    assert len(found[1]) == L
    for layer in (1, 0):
        inputs = (given[layer], position, LAYERS[layer], H, call["mems"][layer])
        d_hidden, _, wanted, _ = spec.transformer_xl_layer_grad(d_hidden, *inputs)
        assert list(found[1][layer]) == list(wanted)
        assert all(close(found[1][layer][name], by) for name, by in wanted.items())
    assert close(found[0], d_hidden)


def handing_on_to_x(found: Any, d_new_mems: Any, **_: Any) -> Any:
    """Twin: what arrives at the first layer's memory goes on to x."""
    return found[0] + d_new_mems[0][:, -N:], *found[1:]


def handing_on_to_the_memory(found: Any, d_new_mems: Any, mems: Any, **_: Any) -> Any:
    return *found[:2], [d[:, :1] + mem for d, mem in zip(d_new_mems, found[2], strict=True)]


def memory_with_a_gradient(found: Any, mems: Any, **_: Any) -> Any:
    return *found[:2], [1e-30 * mem for mem in mems]


@clause(
    GRADIENT,
    2,
    false=[
        answering(GRADIENT, handing_on_to_x),
        answering(GRADIENT, handing_on_to_the_memory),
        answering(GRADIENT, memory_with_a_gradient),
    ],
)
def nothing_flows_through_memories(gradient: Function) -> None:
    call = stack()
    without, found = (gradient(**arriving(call, number), **call) for number in (0.0, 1e3))
    assert np.array_equal(found[0], without[0])
    for name, by in without[1][0].items():
        assert np.array_equal(found[1][0][name], by)
    assert [x.shape for x in found[2]] == [(B, S, F)] * L
    assert not any(x.any() for x in found[2])
