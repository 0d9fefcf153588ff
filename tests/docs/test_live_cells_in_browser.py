"""
The live cells in Chromium: each gives the numbers of the specification, its picture follows them.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from attnverify import spec
from tests.docs.test_live_numpy import CELLS
from tests.support.browser import Browser, Page, at_home, open_page, wait_for

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("docs")]


def shown(page: Page) -> list[list[list[str]]]:
    """The tables of the live cell, as text."""
    tables = (
        "[...document.querySelectorAll('.live table')].map((t) => [...t.rows].map((r) => "
        "[...r.cells].map((c) => c.textContent)))"
    )
    return list(page.evaluate(tables))


def written(x: np.ndarray) -> list[list[str]]:
    return [[f"{number:g}" for number in row] for row in x]


@pytest.mark.parametrize("name", ["shift_right", "rel_shift"])
def test_the_live_cell_answers_with_the_numbers_of_the_specification(
    browser: Browser, address: str, name: str
) -> None:
    page = open_page(browser, f"{address}/operations/{name}.html")
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    for N, M in ((3, 4), (1, 1), (5, 2), (2, 7), (7, 8)):
        x = np.arange(1.0, N * M + 1).reshape(N, M)
        set_sizes(page, N=N, M=M)
        assert shown(page) == [written(x), written(getattr(spec, name)(x))]
    assert at_home(page, address)


def set_sizes(page: Page, **sizes: int) -> None:
    """Move the sliders, as a reader does."""
    for letter, size in sizes.items():
        slider = f"document.querySelector('.live input[name={letter}]')"
        page.evaluate(
            f"{slider}.value = {size}; {slider}.dispatchEvent(new Event('input', {{bubbles: "
            f"true}}))"
        )


def test_the_picture_of_a_live_cell_follows_its_numbers(browser: Browser, address: str) -> None:
    page = open_page(browser, f"{address}/operations/softmax.html")
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    for N, M, hidden in ((2, 5, 0), (3, 4, 1), (2, 3, 3)):
        set_sizes(page, N=N, M=M, hidden=hidden)
        score = 2 * np.sin(np.arange(1.0 * N * M)).reshape(N, M)
        weights = spec.softmax(score, np.broadcast_to(np.arange(M) < M - hidden, (N, M)))
        widths = page.evaluate(
            "[...document.querySelectorAll('.live svg line')]"
            ".map((line) => line.getAttribute('stroke-width'))"
        )
        assert np.allclose([*map(float, widths)], 1 + 5 * weights[weights > 0])


@pytest.mark.parametrize("name", ["shift_right", "rel_shift"])
def test_the_rows_of_a_shift_move_to_their_places(
    browser: Browser, address: str, name: str
) -> None:
    page = open_page(browser, f"{address}/operations/{name}.html")
    page.emulate_media(reduced_motion="reduce")
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    x = np.arange(1.0, 13.0).reshape(3, 4)
    assert moved_numbers(page) == places_of(x)
    page.locator(".live button[aria-pressed]").click()
    assert moved_numbers(page) == places_of(getattr(spec, name)(x))


def moved_numbers(page: Page) -> dict[str, list[str]]:
    """Where the numbers of the moving picture are to be seen, each with its places."""
    seen = page.evaluate(
        "[...document.querySelectorAll('.live svg .moves')].filter((g) => g.style.opacity === '1')"
        ".map((g) => [g.textContent, g.style.transform])"
    )
    return {number: sorted(at for other, at in seen if other == number) for number, _ in seen}


def places_of(x: np.ndarray) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for (i, j), number in np.ndenumerate(x):
        found.setdefault(f"{number:g}", []).append(f"translate({36 * j}px, {36 * i}px)")
    return {number: sorted(places) for number, places in found.items()}


def test_curves_of_a_live_cell_follow_its_numbers(browser: Browser, site: Path) -> None:
    page = open_page(browser, (site / "operations" / "get_slopes.html").as_uri())
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    for H in (3, 8):
        set_sizes(page, H=H)
        points = page.locator(".live svg polyline").get_attribute("points")
        height = np.array([float(point.split(",")[1]) for point in str(points).split()])
        slopes = spec.get_slopes(H)
        risen = (height[-1] - height) / (height[-1] - height[0])
        assert np.allclose(risen, (slopes - slopes[-1]) / (slopes[0] - slopes[-1]))


def test_every_live_cell_gives_the_numbers_of_the_specification_from_a_folder(
    browser: Browser, site: Path
) -> None:
    page = open_page(browser, (site / "operations" / "causal_mask.html").as_uri())
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    wait_for(page, "document.querySelector('.live').dataset.answered")
    for name, cell in CELLS.items():
        sizes = {letter: most for letter, (_, _, most) in cell["sliders"].items()}
        asked = [cell["code"], json.dumps(sizes)]
        said = json.loads(page.evaluate("(asked) => loadAnswer()(...asked)", asked))
        names = {"np": np, **vars(spec), **sizes}
        exec(cell["code"], names)
        assert "show" in said, (name, said)
        assert list(said["show"]) == list(names["show"]), name
        for wanted, rows in zip(names["show"].values(), said["show"].values(), strict=True):
            assert equal(rows, np.asarray(wanted, float)), name
    assert at_home(page, "file:")


def equal(rows: list[list[float | str]], wanted: np.ndarray) -> bool:
    """Whether a cell has these numbers, but for the order of its sums; an infinity is a word."""
    numbers = [[x.replace("∞", "inf") if isinstance(x, str) else x for x in row] for row in rows]
    found, finite = np.array(numbers).astype(float).reshape(wanted.shape), np.isfinite(wanted)
    away = abs(found[finite] - wanted[finite])
    near = away <= 1e-12 * abs(wanted[finite]).max(initial=0)
    return bool(near.all() and (found[~finite] == wanted[~finite]).all())


def test_a_live_cell_with_another_number_is_noticed() -> None:
    wanted = np.array([[1.0, -np.inf], [0.0, 3.0]])
    assert equal([[1, "-∞"], [0, 3]], wanted)
    assert not equal([[1, "∞"], [0, 3]], wanted) and not equal([[1, "-∞"], [1e-9, 3]], wanted)


def test_a_live_cell_says_what_the_specification_refuses(browser: Browser, address: str) -> None:
    page = open_page(browser, f"{address}/operations/causal_mask.html")
    page.evaluate(
        "document.querySelector('.live textarea').value = 'show = {\"none\": causal_mask(0, M)}'"
    )
    page.evaluate("document.querySelector('.live').requestSubmit()")
    said = wait_for(page, "document.querySelector('.said').textContent")
    with pytest.raises(ValueError) as refused:
        spec.causal_mask(0, 5)
    assert said == f"ValueError: {refused.value}"
