"""
Fits: a factor that explains a failure which no convention and no known fault does.

One stage is multiplied by a factor, or each output, or a scale is another number; the factor
nearest to the outputs is told if all observations are then within the yardstick: one number for all
of them, a power of a size, or a slope of its own for each head.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.factors.least_squares import FactorModel, fit_common_factor
from attnverify.diagnosis.factors.scale import fit_scale
from attnverify.diagnosis.factors.stage_numbers import fit_hidden_number, fit_stage_number
from attnverify.diagnosis.factors.stages import fit_stage_factor, slopes_of_heads
from attnverify.diagnosis.whereabouts.outputs import exceeds_bound, output_names
from attnverify.judge.observation import Observation

MOST = 4
"""As many wrong observations are fitted at a time."""
CLEARLY = 4.0
"""So many bounds at least must an error be for a factor to be looked for."""
ENOUGH = 4
"""So many numbers at least must be wrong: some factor explains any single one."""


def has_all(o: Observation) -> bool:
    """Whether each output is there, in the shape that it should have."""
    return [x.shape for x in o.actual] == [x.shape for x in o.expected]


def fit_factor(operation: Operation, seen: Sequence[Observation]) -> Explanation | None:
    """
    Fit the factor that explains all observations; None also where the errors are so small that
    roundings may explain them.
    """
    wrong = [observation for observation in seen if observation.wrong][:MOST]
    if any(not o.bounds or o.bounds[0] is None or not has_all(o) for o in wrong):
        return None
    if max((o.law for o in wrong), default=0.0) < CLEARLY:
        return None
    if sum(count_wrong_numbers(o) for o in wrong) < ENOUGH:
        return None
    if operation.is_staged and (hidden := fit_hidden_number(wrong, seen)):
        return hidden
    if any(np.isinf(observation.ratio) for observation in wrong):
        return None
    of_stage = (
        fit_stage_factor(wrong, seen) or slopes_of_heads(wrong) or fit_stage_number(wrong, seen)
        if operation.is_staged
        else None
    )
    return (
        of_stage
        or fit_scale(operation, wrong, seen)
        or whole_output(wrong, seen)
        or each_output(wrong)
    )


def count_wrong_numbers(o: Observation) -> int:
    """How many elements of the outputs are beyond their bounds."""
    return sum(
        int(exceeds_bound(actual, expected, bound).sum())
        for actual, expected, bound in zip(o.actual, o.expected, o.bounds, strict=True)
        if bound is not None and actual.shape == expected.shape
    )


def whole_output(wrong: Sequence[Observation], seen: Sequence[Observation]) -> Explanation | None:
    factor = fit_common_factor(
        [scaled_output_model(o) for o in wrong], [scaled_output_model(o) for o in seen]
    )
    if factor is None:
        return None
    name, told = (say.EVERY_OUTPUT.format(factor=each) for each in (factor.name, factor.words))
    return Explanation(name, told)


def scaled_output_model(o: Observation) -> FactorModel:
    return FactorModel(o, lambda g: [g * e for e in o.expected])


def each_output(wrong: Sequence[Observation]) -> Explanation | None:
    """
    Return a factor of its own for each output that is wrong: of gradients some are often right, and
    some nothing but zeros.
    """
    most = max(wrong, key=lambda o: len(o.actual), default=None)
    if most is None or len(most.actual) < 2:
        return None
    names, told, zero = output_names(most), list[str](), list[str]()
    named = [(o, output_names(o)) for o in wrong]
    for name in names:
        parts = [output_of(o, own.index(name)) for o, own in named if name in own]
        off = [part for part in parts if part.law > 1]
        if not off:
            continue
        if not any(part.actual[0].any() for part in off):
            zero.append(name)
            continue
        models = [scaled_output_model(part) for part in parts]
        factor = fit_common_factor([scaled_output_model(part) for part in off], models)
        if factor is None:
            return None
        told.append(say.OUTPUT_HAS_FACTOR.format(name=name, factor=factor.words))
    if not told and not zero:
        return None
    others = len(most.actual) - len(told) - len(zero)
    told = [*([describe_zeros(zero)] if zero else []), *told]
    words = "; ".join(told)
    return Explanation.of(say.OTHERS_RIGHT.format(told=words) if others else words)


def nothing_but_zeros(wrong: Sequence[Observation]) -> Explanation | None:
    """Say which outputs are zeros alone, where these are all that is wrong."""
    off = [(name, output_of(o, n)) for o in wrong for n, name in enumerate(output_names(o))]
    off = [(name, part) for name, part in off if part.law > 1]
    if not off or any(part.actual[0].any() for _, part in off):
        return None
    return Explanation.of(describe_zeros(list(dict.fromkeys(name for name, _ in off))))


def describe_zeros(names: Sequence[str]) -> str:
    """Outputs that are nothing but zeros: ``no gradient reaches query and key``."""
    prefix = say.GRADIENT_BY.format(name="")
    if all(name.startswith(prefix) for name in names):
        inputs = [name.removeprefix(prefix) for name in names]
        return say.NO_GRADIENT.format(names=enumerate_names(inputs))
    return say.ALL_ZEROS.format(names=enumerate_names(names))


def enumerate_names(names: Sequence[str]) -> str:
    """``query``, ``query and key``, ``query, key and mask``"""
    *most, last = names
    return say.LIST.format(most=", ".join(most), last=last) if most else last


def output_of(o: Observation, number: int) -> Observation:
    """One output of an observation."""
    one = slice(number, number + 1)
    return replace(o, actual=o.actual[one], expected=o.expected[one], bounds=o.bounds[one])
