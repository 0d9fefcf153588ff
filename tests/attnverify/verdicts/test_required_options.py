"""Each form of an option is shown where a function takes few, and what it does not take is told."""

from pathlib import Path

import pytest

from attnverify import ROOT
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.finding import Finding
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save
from attnverify.inputs.fixed_cases import FAR, fixed_recipe
from attnverify.inputs.real.required_kinds import kinds_of, required_cases
from attnverify.inputs.real.required_options import HIDING, options_of
from attnverify.inputs.sampling import resized, shrink_key
from attnverify.judge.case import case_of
from attnverify.plugin.closing import describe_unseen
from attnverify.precision import resolve
from attnverify.repair.calls import outcome
from attnverify.verdicts.fitting import fitted_recipes
from attnverify.verdicts.search import EARLIER, Search, lacked_feature
from tests.support.judge_text import judged
from tests.support.nightly import covering
from tests.support.quick_search import cell_of, search_quick

WITH_OPTIONS = [name for name, op in CATALOGUE.items() if op.domains and not op.is_stack]

OPENS = {
    "grouped_attention": "query, key, value",
    "packed_attention": "query, key, value, query_starts, key_starts",
    "paged_attention": "query, key_pages, value_pages, page_table, lengths, query_starts",
}

FEW = """
from attnverify.numpy_ref import {name} as own

def {name}({given}, soft_cap=None, causal=False, window=None):
    {fault}
    return own({given}, soft_cap=soft_cap, causal=causal, window=window)
"""

FAULTS = {
    "no left side": "if window and window[0] is None: raise TypeError('no None')",
    "no right side": "if window and window[1] is None: raise TypeError('no None')",
    "a row's own key alone": "window = None if window == (0, 0) else window",
    "a window that is not causal": "causal = causal or window is not None",
    "a cap of one size": "soft_cap = soft_cap and 30.0",
    "causal without a window": "causal = causal and window is not None",
}


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_each_form_of_an_option_is_shown_with_no_more_than_it_needs(name: str) -> None:
    alone = {}
    for recipe in required_cases(name):
        given = options_of(recipe)
        if len(given) <= 2 and not recipe.mask and recipe.values["family"] not in FAR:
            alone |= {(key, str(value)): recipe for key, value in given.items()}
    domains = CATALOGUE[name].domains
    wanted = {(key, str(value)) for key, d in domains.items() for value in d.choices[1:]}
    arrays = {key for key, d in domains.items() if d.integers and not d.required}
    assert wanted <= {*alone, ("mem_len", "3")} or not wanted
    assert arrays <= {key for key, _ in alone}
    precision, exact = resolve(None, name, name, "float32"), CATALOGUE[name].exact
    assert exact or all(
        case_of(recipe, "float32").is_judged(precision) for recipe in alone.values()
    )


@pytest.mark.parametrize(("name", "fault"), covering(OPENS, FAULTS))
def test_quick_sees_a_fault_in_one_form_of_an_option(name: str, fault: str, tmp_path: Path) -> None:
    text = FEW.format(name=name, given=OPENS[name], fault=FAULTS[fault])
    assert search_quick(tmp_path, text, seed=2).failing


AT_A_NUMBER = """
import numpy as np
from attnverify.numpy_ref import visible_keys

def grouped_attention(query, key, value, {takes}):
    (B, H, N, D), (G, M) = query.shape, key.shape[1:3]
    key, value = (np.repeat(x, H // G, 1) for x in (key, value))
    seen = visible_keys(B, N, M, {gives})[:, None]
    hidden, scale = query.dtype.type({number}), np.sqrt(D).astype(query.dtype)
    score = np.where(seen, query @ key.mT / scale, hidden)
    e = np.exp(score - score.max(-1, keepdims=True))
    output = e / e.sum(-1, keepdims=True) @ value
    return np.where(seen.any(-1, keepdims=True), output, 0 * output)

FEATURES = {{"gradient": False, "lse": False}}
"""


def search_at_a_number(folder: Path, option: str, number: str, dtype: str) -> Search:
    names = ["causal", option] if option == "blocks" else [option]
    takes = ", ".join(f"{name}={False if name == 'causal' else None}" for name in names)
    gives = ", ".join(f"{name}={name}" for name in names)
    text = AT_A_NUMBER.format(takes=takes, gives=gives, number=number)
    return search_quick(folder, text, 1, dtype)


LARGER = ("causal", "window")
"""Options that leave rows with one key, of which a bound says most."""


@pytest.mark.parametrize(
    ("option", "number", "dtype"),
    [
        *((option, "-1e4", "float16") for option in HIDING),
        *((option, "-1e6", "float32") for option in HIDING),
        *((option, "-1e8", "float32") for option in LARGER),
    ],
)
def test_keys_that_an_option_hides_at_a_number_are_seen_though_empty_rows_are_0(
    option: str, number: str, dtype: str, tmp_path: Path
) -> None:
    search = search_at_a_number(tmp_path, option, number, dtype)
    assert {*search.failing} == {"wrong number"}


@pytest.mark.parametrize("option", HIDING)
def test_keys_that_an_option_hides_at_minus_infinity_are_not_accused(
    option: str, tmp_path: Path
) -> None:
    search = search_at_a_number(tmp_path, option, "np.finfo(query.dtype).min", "float32")
    assert not search.failing and search.tally.cases >= 20


def test_quick_is_green_on_what_takes_few_options(tmp_path: Path) -> None:
    text = FEW.format(name="packed_attention", given=OPENS["packed_attention"], fault="")
    search = search_quick(tmp_path, text, seed=2)
    assert not search.failing and search.tally.cases >= 20


PAIRED = """
import numpy as np
from attnverify.numpy_ref import grouped_attention as own

def grouped_attention(query, key, value, mask=None, soft_cap=None):
    if soft_cap and mask is not None and mask.dtype == bool:
        mask = np.where(mask, 0.0, -soft_cap)  # a cap behind the mask
    return own(query, key, value, mask=mask, soft_cap=soft_cap)
"""


@pytest.mark.parametrize("seed", range(3))
def test_what_a_file_takes_meets_without_what_it_does_not_take(seed: int, tmp_path: Path) -> None:
    search = search_quick(tmp_path, PAIRED, seed=seed)
    assert search.failing
    assert all(
        recipe.options.get("soft_cap") and recipe.mask
        for cases in search.failing.values()
        for recipe in (case.recipe for case in cases)
    )


TOGETHER = "if window and not causal: raise NotImplementedError('a window wants causal rows')"


def test_an_option_that_wants_another_is_shown_beside_it(tmp_path: Path) -> None:
    text = FEW.format(name="paged_attention", given=OPENS["paged_attention"], fault=TOGETHER)
    right = search_quick(tmp_path, text, seed=2)
    wrong = search_quick(tmp_path, text.replace("window=window", "window=None"), seed=2)
    assert wrong.failing and not right.failing
    assert not any(kind.startswith("window=(2") for kind in right.tally.unseen)
    told = {"backend": "mine", "implementation": "paged_attention", "unseen": right.tally.unseen}
    assert describe_unseen([told])[0] == (
        "mine: paged_attention was judged without sink, scale, chunk, offset or pinned, "
        "which it does not take"
    )


def test_what_is_refused_alone_and_beside_others_is_told(tmp_path: Path) -> None:
    fault = "if window: raise NotImplementedError('no windows yet')"
    text = FEW.format(name="paged_attention", given=OPENS["paged_attention"], fault=fault)
    unseen = search_quick(tmp_path, text, seed=2).tally.unseen
    assert unseen["window=(2, None)"] == "no windows yet"
    kinds = {kind for recipe in required_cases("paged_attention") for kind in kinds_of(recipe)}
    assert {*unseen} <= kinds


BOTH = """if window is not None:
        raise ValueError("no windows here")
    if query.shape[-1] != value.shape[-1]:
        raise NotImplementedError("one width")"""


def test_an_option_that_is_refused_is_not_told_as_a_feature(tmp_path: Path) -> None:
    """No passing call had E != D, so that FEATURES = {"E != D": False} was offered for a window."""
    text = FEW.format(name="grouped_attention", given="query, key, value", fault=BOTH)
    search = search_quick(tmp_path, text, seed=0)
    assert search.failing and search.passing
    for what in search.failing:
        assert not lacked_feature(search, what, Finding(what))


LATE = "if len(query) == 74 and query[0, 0, 0] != 0: raise TypeError('long')"


@pytest.mark.parametrize("fault", [LATE, "raise TypeError('long')"])
def test_what_an_earlier_run_has_recorded_alone_is_told_as_such(fault: str, tmp_path: Path) -> None:
    text = FEW.format(name="packed_attention", given=OPENS["packed_attention"], fault=fault)
    cell = cell_of(tmp_path, text, "float64")
    long = fixed_recipe(CATALOGUE["packed_attention"], {"N": 37, "H": 2})
    record = FailureRecord.of(cell.implementation, case_of(long, "float64"), "values")
    save(record, str(tmp_path / "failures"), None)
    search = search_quick(tmp_path, text, seed=2)
    told = search.share_of(search.failing["raised TypeError"])
    assert (told == EARLIER) == (fault == LATE)


def test_what_an_earlier_run_has_recorded_is_not_counted_again(tmp_path: Path) -> None:
    """Two runs of one file at one seed told 48 and 55 cases: the second replayed what the first
    had recorded."""
    fault = "soft_cap = soft_cap and 30.0"
    text = FEW.format(name="packed_attention", given=OPENS["packed_attention"], fault=fault)
    first = search_quick(tmp_path, text, seed=2)
    cases = first.failing["wrong number"]
    shrunk = resized(min((case.recipe for case in cases), key=shrink_key), {"D": 3})
    cell = cell_of(tmp_path, text, "float32")
    record = FailureRecord.of(cell.implementation, case_of(shrunk, "float32"), "values")
    save(record, str(tmp_path / "failures"), None)
    again = search_quick(tmp_path, text, seed=2)
    assert again.earlier and len(again.failing["wrong number"]) == len(cases) + 1
    assert (again.tally.cases, again.tally.strong) == (first.tally.cases, first.tally.strong)
    assert again.share_of(again.failing["wrong number"]) == first.share_of(cases)


OUTSIDE_OF_CAUSAL = {"causal=True": "takes no causal", "blocks": "takes no causal"}


def test_an_option_shown_beside_another_that_is_not_taken_is_not_taken_either() -> None:
    told = {"backend": "mine", "implementation": "f", "unseen": OUTSIDE_OF_CAUSAL}
    assert describe_unseen([told]) == [
        "mine: f was judged without causal or blocks, which it does not take"
    ]


STACK = """
from attnverify import numpy_ref

def transformer_xl(x, parameters, num_heads, mems, mem_len, eps=1e-5):
    return numpy_ref.transformer_xl(x, parameters, num_heads, mems, mem_len, eps)
"""


def test_an_option_that_is_taken_is_not_said_to_be_lacking(tmp_path: Path) -> None:
    """The one required case of a shorter memory has a draw, which this file does not take."""
    result = judged(tmp_path, STACK)
    assert result.verdict == "passed" and result.unseen == {"dropout": "takes no keep"}
    told = {"backend": "mine", "implementation": "f", "unseen": {"mem_len=3": "takes no keep"}}
    assert describe_unseen([told]) == ["mine: no mem_len=3 was judged of f: it takes no keep"]
    plural = told | {"unseen": {"weights": "it returns none"}}
    assert describe_unseen([plural]) == ["mine: no weights were judged of f: it returns none"]


PAGES_OF_THE_LONGEST = '''
import numpy as np
from attnverify.numpy_ref import paged_attention as own

def paged_attention(
    query, key_pages, value_pages, page_table, lengths, query_starts, causal=False, window=None
):
    """A window walks as many pages of each sequence as of the longest, from its first one on."""
    page, span = key_pages.shape[1], np.diff(query_starts).max()
    if window and window[0] is not None:
        first = np.maximum(lengths - window[0] - span, 0) // page
        count = -(-lengths.max() // page) - first[lengths.argmax()]
        offset = lengths - np.diff(query_starts)
        return own(query, key_pages, value_pages, page_table,
                   np.minimum(lengths, (first + count) * page), query_starts,
                   causal=causal, window=window, offset=offset)
    return own(query, key_pages, value_pages, page_table, lengths, query_starts,
               causal=causal, window=window)
'''


def test_quick_sees_a_window_that_walks_the_pages_of_the_longest(tmp_path: Path) -> None:
    """One row of each sequence, as in decoding: of ten rows no window begins behind a page."""
    assert search_quick(tmp_path, PAGES_OF_THE_LONGEST, seed=2).failing


CAPPED = """
import numpy as np
from attnverify.numpy_ref import grouped_attention as own

def grouped_attention(query, key, value, soft_cap=None):
    if soft_cap is None:
        return own(query, key, value)
    score = query @ np.repeat(key, query.shape[1] // key.shape[1], 1).mT * query.shape[-1] ** -0.5
    up, down = np.exp(score / soft_cap), np.exp(-score / soft_cap)
    weights = np.exp(soft_cap * (up - down) / (up + down))
    total = weights.sum(-1, keepdims=True)
    values = np.repeat(value, query.shape[1] // value.shape[1], 1)
    return (weights / total) @ values, np.log(total[..., 0])
"""


def test_quick_sees_a_tanh_of_two_exponentials_that_overflow(tmp_path: Path) -> None:
    search = search_quick(tmp_path, CAPPED, seed=2, dtype="float32")
    assert search.failing and {"NaN"} >= {*search.failing}


PADDED = ROOT / "tests" / "reports" / "later" / "eighth" / "padded_keys_in_the_backward"


@pytest.mark.parametrize(("name", "kind"), [("wrong", "NaN"), ("right", "passed")])
def test_a_row_far_below_0_shows_what_stands_behind_the_last_key(name: str, kind: str) -> None:
    """No mask is needed for it: padding that a backward pass does not hide is 0, far above it."""
    own = load(str(PADDED / f"{name}.py")).implementations[-1]
    (far,) = (
        recipe
        for recipe in required_cases(own.operation.name)
        if recipe.values["family"] == "far_below" and not (recipe.mask or recipe.options)
    )
    (fitted,) = fitted_recipes([far], own.backend.declared.limits)
    assert own.operation.is_gradient and outcome(own, case_of(fitted, "float32")) == kind
