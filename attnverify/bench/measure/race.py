"""
A race: one case, all contestants, judged, sampled in turn, checked, and written down as plain data.
"""

import warnings
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from attnverify.backends.implementation import Implementation
from attnverify.bench.measure import peak_memory
from attnverify.bench.measure.cases import Case
from attnverify.bench.measure.clock import timed
from attnverify.bench.measure.contestants import (
    Contestant,
    contestants,
    given,
    implementation_of,
    prepared,
)
from attnverify.bench.measure.inputs import with_fresh_values
from attnverify.bench.measure.roofline import Ceilings, Cost, ceilings, cost
from attnverify.bench.measure.sampling import (
    WARM_UPS,
    Sampled,
    balanced_orders,
    changed_after_timing,
    clocks,
    flush,
    poison,
    rounds_for,
    warm_up,
)
from attnverify.bench.measure.shares import Question, ask, begin, draw_shares, settle
from attnverify.bench.measure.summary import compare_rounds, summarise
from attnverify.bench.measure.validation import (
    Judgement,
    check_shares,
    is_out_of_memory,
    judged,
)
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Disagreement, Unsupported

on_step: ContextVar[Callable[[str], None]] = ContextVar("on_step", default=lambda words: None)
"""Who hears what is begun: somebody waits, and a race takes minutes on a busy machine."""


@dataclass(eq=False)
class Entry:
    """
    A contestant in one race: who it is, what was judged, what was sampled, and why its time does
    not count if it does not; why not all gradients of its timed calls were judged.
    """

    contestant: Contestant
    implementation: Implementation | None
    judgement: Judgement
    sampled: Sampled = field(default_factory=Sampled)
    outputs: Any = None
    peak: int | None = None
    refused: str = ""
    not_judged: str = ""
    wall: float = 0.0
    """Seconds of a sample with all that is around it."""

    @property
    def runs(self) -> bool:
        return self.judgement.verdict in ("correct", "wrong")


@dataclass(frozen=True)
class Race:
    """All of a case: entries in their order, and what the machine was like before and after."""

    case: Case
    device: str
    entries: tuple[Entry, ...]
    ceilings: Ceilings | None
    cost: Cost | None
    clocks: dict[str, Any]


def race(case: Case, device: str, measured: bool = True) -> Race:
    """Run the case on a device; ``measured`` False only shows that everything runs and is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a peer warns of is its own business
        question, asked = ask(case, device), contestants(case)
        for found in (implementation_of(contestant, case) for contestant in asked):
            if not isinstance(found, str):  # while the first of them is compiled
                begin(question.shares, found.precision(case.dtype))
        entries = tuple(enter(question, contestant) for contestant in asked)
        return run(question, device, entries, measured)


def enter(question: Question, contestant: Contestant) -> Entry:
    """Find the implementation of a contestant and judge it."""
    on_step.get()(f"judging {contestant.label}")
    found = implementation_of(contestant, question.case)
    if isinstance(found, str):
        return Entry(contestant, None, Judgement("missing", found))
    return Entry(contestant, found, judged(question, contestant, found))


def run(question: Question, device: str, entries: tuple[Entry, ...], measured: bool = True) -> Race:
    """Warm up, sample in turn, check what was timed."""
    settle(question.shares)
    rng, before, case = np.random.default_rng(), clocks(device), question.case
    base = with_fresh_values(question.inputs, rng)
    for entry in entries:
        start(case, device, entry, base, measured)
    running = [entry for entry in entries if entry.runs]
    each = sum(entry.wall for entry in running)
    rounds = rounds_for(case.seconds if measured else 0.0, each)
    if running:
        on_step.get()(f"timing {len(running)} in turn, {rounds} rounds, {each * rounds:.0f} s")
    shown = {rounds - 1} if case.mode != "forward" else {int(rng.integers(rounds)), rounds - 1}
    for entry in running:
        entry.sampled.seconds.clear()
        entry.sampled.host.clear()
    for number, order in enumerate(
        balanced_orders([entry.contestant.label for entry in running], rounds)
    ):
        inputs = with_fresh_values(base, rng)
        one_round(
            case,
            device,
            sorted(running, key=lambda entry: order.index(entry.contestant.label)),
            inputs,
            number if number in shown else None,
        )
        if number in shown:
            check_last_outputs(case, running, inputs, number, rng)
    found = ceilings(device, case.dtype) if measured else None
    counted = cost(case, base, running[0].outputs) if running else None
    for entry in running:
        entry.outputs = None
        entry.sampled.kept.clear()
        refuse_the_impossible(entry, counted, found)
    return Race(case, device, entries, found, counted, {"before": before, "after": clocks(device)})


def start(case: Case, device: str, entry: Entry, base: Inputs, measured: bool) -> None:
    """Warm up and look at the memory; who cannot run this mode after all says so here."""
    if not entry.runs or entry.implementation is None:
        return
    on_step.get()(f"warming up {entry.contestant.label}")
    try:
        begin = perf_counter()
        entry.sampled.warm_ups = warm_up(
            lambda: time_one_call(case, device, entry, base), WARM_UPS if measured else 1
        )
        entry.wall = (perf_counter() - begin) / entry.sampled.warm_ups
        arrays = given(entry.contestant, entry.implementation, base, case.dtype)
        entry.peak = peak_memory.peak(
            entry.implementation, device, prepared(case, entry.implementation, arrays)
        )
    except (Unsupported, NotImplementedError) as reason:
        entry.judgement = Judgement("unsupported", str(reason))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        entry.judgement = Judgement("out of memory", str(error))


def time_one_call(
    case: Case, device: str, entry: Entry, inputs: Inputs, keep: int | None = None
) -> float:
    """Time one call: arrays, caches and free memory as they should be, then the clock."""
    assert entry.implementation is not None
    call = prepared(
        case,
        entry.implementation,
        given(entry.contestant, entry.implementation, inputs, case.dtype),
    )
    if entry.outputs is not None:
        shapes, entry.outputs = entry.outputs, None
        poison(shapes)
        del shapes
    if case.seconds:
        flush(device)
    took = timed(entry.implementation.library, device, call)
    entry.outputs = took.outputs
    entry.sampled.seconds.append(took.seconds)
    entry.sampled.host.append(took.host)
    entry.sampled.kept = {-1: took.copy} if keep is None else {keep: took.copy, -1: took.copy}
    return took.seconds


def one_round(
    case: Case, device: str, order: list[Entry], inputs: Inputs, keep: int | None
) -> None:
    """
    Everyone once with the same numbers; then the outputs must still be what they were when each
    clock stopped.
    """
    for entry in order:
        time_one_call(case, device, entry, inputs, keep)
    for entry in order:
        late = changed_after_timing(entry.outputs, entry.sampled.kept[-1])
        entry.refused = entry.refused or late


def check_last_outputs(
    case: Case, running: list[Entry], inputs: Inputs, number: int, rng: np.random.Generator
) -> None:
    """
    Return the outputs as they were right after the clock stopped, held to the specification on rows
    and on a head that are drawn now.
    """
    shares, not_judged = draw_shares(case, inputs, rng)
    correct = [entry for entry in running if entry.judgement.verdict == "correct"]
    for entry in correct:
        assert entry.implementation is not None
        begin(shares, entry.implementation.precision(case.dtype))
    for entry in correct:
        assert entry.implementation is not None
        kept = entry.sampled.kept[number]
        try:
            check_shares(shares, entry.implementation, inputs, kept, case.dtype)
            entry.not_judged = not_judged
        except Disagreement as error:
            entry.refused = (
                entry.refused or f"right before it was timed, wrong while it was: {error}"
            )
    settle(shares)


def refuse_the_impossible(entry: Entry, counted: Cost | None, found: Ceilings | None) -> None:
    """Refuse a time below the floor: it is an error of measurement, whoever it flatters."""
    if counted is None or found is None:
        return
    floor, took = found.floor(counted), median(entry.sampled.seconds)
    if took < floor:
        entry.refused = (
            entry.refused
            or f"{took:.3g} s is less than the {floor:.3g} s that its operations and bytes take at "
            "this machine's best"
        )


def record(found: Race, entry: Entry) -> dict[str, Any]:
    """Collect what is kept of an entry: plain data, for the JSON of pytest-benchmark."""
    case, judgement = found.case, entry.judgement
    facts: dict[str, Any] = {
        "case": case.name, "operation": case.operation, "dtype": case.dtype, "mode": case.mode,
        "device": found.device, "sizes": case.sizes,
        "label": entry.contestant.label, "ours": entry.contestant.ours,
        "verdict": judgement.verdict, "reason": judgement.reason,
        "budget": judgement.budget, "refused": entry.refused,
        "not_judged": entry.not_judged, "peak_extra_bytes": entry.peak,
        "warm_ups": entry.sampled.warm_ups,
        "clocks": found.clocks,
        "seconds": summarise(entry.sampled.seconds), "host": summarise(entry.sampled.host),
        "ratios": ratios(found, entry),
    }  # fmt: skip
    if entry.implementation is not None:
        facts |= {
            "implementation": entry.implementation.name,
            "versions": entry.implementation.backend.versions,
        }
    return facts | (
        compute_rates(found, entry)
        if entry.sampled.seconds and found.ceilings and found.cost
        else {}
    )


def ratios(found: Race, entry: Entry) -> dict[str, tuple[float, float, float]]:
    """Compute how many times as long each of the others took, by its label."""
    fast = entry.sampled.seconds
    others = [other for other in found.entries if other is not entry and other.sampled.seconds]
    return {
        other.contestant.label: compare_rounds(other.sampled.seconds, fast)
        for other in others
        if fast
    }


def compute_rates(found: Race, entry: Entry) -> dict[str, Any]:
    """Rates of the median, and how much of the roofline they are."""
    assert found.ceilings is not None and found.cost is not None
    counted, seconds = found.cost, entry.sampled.seconds
    middle = median(seconds)
    return {
        "tflops_convention": counted.convention / middle / 1e12,
        "tflops_true": counted.true / middle / 1e12,
        "gb_per_s": counted.bytes / middle / 1e9,
        "intensity": counted.true / counted.bytes if counted.bytes else 0.0,
        "roofline": found.ceilings.floor(counted) / middle, "ceilings": vars(found.ceilings),
    }  # fmt: skip
