"""
The page of a report: what it shows is what the JSON says, it is whole without a network, and text
stays text.
"""

import base64
import hashlib
import json
import re
import shlex
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from attnverify.failures.evidence import WINDOW, axes_of, picture
from attnverify.failures.plain_data import to_plain
from attnverify.judge.comparison import compare
from attnverify.report.html import report_page
from attnverify.report.html.document import render
from attnverify.report.html.reproducers import copy_reproducers
from attnverify.report.json_report import json_text
from tests.support.run_attnverify import Run, in_a_process, judged, verify
from tests.support.sample_backends import HERE
from tests.support.synthetic_reports import HOSTILE, hostile, large

PLANTED = str(HERE / "two_planted_faults.py")
VOID = {"meta", "input"}


class Elements(HTMLParser):
    """
    Every element of a page with its attributes and the text in it; what is not closed in order is
    an error.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[Any] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes), []))
        self.open += [] if tag in VOID else [self.found[-1]]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, text: str) -> None:
        for _, _, texts in self.open:
            texts.append(text)

    def all(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        """The attributes and the text of each such element."""
        return [
            (own, "".join(texts))
            for name, own, texts in self.found
            if name == tag and wanted.items() <= own.items()
        ]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run with two planted faults, and where it ran."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("two_planted_faults"))
        return judged("--backend", PLANTED, "--report", "out.html"), folder


@pytest.fixture(scope="module")
def shown(planted: tuple[Run, Path]) -> Elements:
    return Elements((planted[1] / "out.html").read_text(encoding="utf-8"))


def findings(run: Run) -> list[dict[str, Any]]:
    return [found for tally in (run.report or {})["tallies"] for found in tally["findings"]]


def pictures(run: Run) -> list[dict[str, Any]]:
    shown = [found["evidence"] for found in findings(run)]
    small = [evidence["picture"] for evidence in shown if evidence["picture"]]
    return small + [evidence["drawn"]["picture"] for evidence in shown if evidence["drawn"]]


# What it shows


def test_a_failed_cell_says_so_and_leads_to_its_failure(
    planted: tuple[Run, Path], shown: Elements
) -> None:
    failed = [
        tally for tally in (planted[0].report or {})["tallies"] if tally["verdict"] == "failed"
    ]
    told = [own["href"] for own, text in shown.all("a") if text.endswith("FAILED")]
    assert len(told) == len(failed) == len({*told}) == 5
    assert {f"#{own['id']}" for own, _ in shown.all("details", **{"class": "failure"})} == {*told}


def test_the_frame_is_where_the_report_says_the_worst_element_is(
    planted: tuple[Run, Path], shown: Elements
) -> None:
    wanted = Counter(
        str(tuple(found["index"])) for found in pictures(planted[0]) if found["total"] > 1
    )
    framed = Counter(own["data-index"] for own, _ in shown.all("rect", **{"class": "worst"}))
    assert wanted and framed == Counter(
        {index: 3 * times for index, times in wanted.items()}
    )  # in each of three maps


def test_the_worst_element_of_the_picture_is_the_one_that_was_printed(
    planted: tuple[Run, Path],
) -> None:
    for found in findings(planted[0]):
        index = tuple(found["evidence"]["picture"]["index"])
        assert f"worst at {index}: " in found["message"]


def test_the_line_on_the_page_replays_the_failure(
    planted: tuple[Run, Path], shown: Elements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planted[1])
    line = next(text for _, text in shown.all("code") if text.startswith("attnverify replay"))
    again = verify(*shlex.split(line)[1:])
    assert (
        again.status == 1
        and "elements differ from the specification" in again.output
        and "two_planted_faults.py" in again.output
    )


def test_a_failure_kept_elsewhere_is_replayed_from_there() -> None:
    report = large(20) | {"failures": "some where"}
    assert "attnverify replay 0123456789ab --failures 'some where'" in [
        text for _, text in Elements(report_page(report)).all("code")
    ]


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two findings have the same cause, which is told of one of them."""
    causes = [one["cause"], other["cause"]]
    return all(causes) and causes[0]["explanations"] == causes[1]["explanations"]


def test_the_causes_recipes_and_reasons_stand_there(
    planted: tuple[Run, Path], shown: Elements
) -> None:
    texts = "".join(text for _, text in shown.all("main"))
    for found in findings(planted[0]):
        assert found["record"]["words"] in texts
        same = [other["cause"]["words"] for other in findings(planted[0]) if alike(found, other)]
        assert found["cause"] is None or any(words in texts for words in same)
    assert "a causal mask that hides the query's own key" in texts and texts.index(
        "Root causes"
    ) < texts.index("Verdicts")


def test_every_verdict_is_a_word(shown: Elements) -> None:
    words = [
        text.split()[-1]
        for own, text in shown.all("span")
        if str(own.get("class", "")).startswith("verdict")
    ]
    assert {"FAILED", "passed", "failed"} == {*words}


def test_known_failures_and_unsupported_cells_give_their_reasons() -> None:
    rows = [text for _, text in Elements(report_page(large(60))).all("tr")]
    assert any("because of 3" in row for row in rows)


def test_the_page_of_the_saved_report_is_the_same(planted: tuple[Run, Path]) -> None:
    done = verify("page", str(planted[1] / "report.json"), "-o", "again.html")
    assert (
        done.status == 0 and Path("again.html").read_text() == (planted[1] / "out.html").read_text()
    )


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", "", '{"tallies": 3}'])
def test_what_is_no_report_is_told_in_one_line(text: str) -> None:
    Path("r.json").write_text(text)
    done = verify("page", "r.json")
    assert done.status == 2 and done.output.count("\n") == 1
    assert done.output.startswith("Error: report: wanted what --report-json wrote, got r.json")


def test_a_report_that_cannot_be_written_is_told_before_anything_runs() -> None:
    done = judged("--backend", PLANTED, "--report", "nowhere/out.html")
    assert (
        done.status == 4
        and "--report: wanted a file in a directory that exists, got nowhere/out.html"
        in done.output
    )


@pytest.mark.parametrize("which", ["all", pytest.param("none", marks=pytest.mark.thorough)])
def test_workers_and_processes_of_their_own_lose_no_picture(
    planted: tuple[Run, Path], which: str
) -> None:
    options = ("--profile", "quick", "--dtype", "float32", "--op", "softmax", "--isolate", which)
    line = (*options, "--report", "out.html", "--report-json", "out.json")
    done = in_a_process("run", "-n", "2", "--backend", PLANTED, *line)
    report = json.loads(Path("out.json").read_text())
    alone, spread = (
        sorted(
            json.dumps([found["evidence"] for found in tally["findings"]])
            for tally in tallies
            if tally["operation"] == "softmax"
        )
        for tallies in ((planted[0].report or {})["tallies"], report["tallies"])
    )
    assert done.status == 1 and alone == spread
    programs = copy_reproducers(report, Path("out.html"))
    assert programs and Path("out.html").read_text() == report_page(report, programs)


# Text stays text


def test_nothing_that_a_user_says_becomes_an_element() -> None:
    page = Elements(report_page(hostile()))
    assert Counter(tag for tag, _, _ in page.found)["script"] == 1 and not page.all("img")
    assert not [name for _, own, _ in page.found for name in own if name.startswith("on")]
    assert sum(text.count(HOSTILE) for _, text in page.all("body")) > 50


def test_the_only_script_is_the_one_that_the_policy_names() -> None:
    page = Elements(report_page(hostile()))
    policy = str(page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0][0]["content"])
    digest = base64.b64encode(hashlib.sha256(page.all("script")[0][1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'") and re.findall(r"script-src [^;]*", policy) == [
        f"script-src 'sha256-{digest}'"
    ]


def rendered(folder: Path, template: str, **data: Any) -> str:
    (folder / "page.html").write_text(template)
    return render("page.html", folder, **data)


def test_a_template_escapes_what_no_template_made(tmp_path: Path) -> None:
    template = '<b title="{{ words }}">{{ words }}{{ made }}{{ nothing }}</b>'
    data = {"words": '"<', "made": Markup("<hr>"), "nothing": None}
    wanted = '<b title="&#34;&lt;">&#34;&lt;<hr></b>'
    assert rendered(tmp_path, template, **data) == wanted


def test_what_cannot_be_seen_is_marked(tmp_path: Path) -> None:
    text = "a\x00\x1b\u202e\udc80b\n"
    assert rendered(tmp_path, "{{ text }}|", text=text) == "a\ufffd\ufffd\ufffd\ufffdb\n|"


def test_a_template_that_asks_for_what_is_not_there_fails(tmp_path: Path) -> None:
    with pytest.raises(UndefinedError, match="nobody"):
        rendered(tmp_path, "{{ nobody }}")


# The form


@pytest.mark.parametrize(
    "report", [large(60), hostile(), large(0)], ids=["usual", "hostile", "empty"]
)
def test_a_page_is_whole_and_can_be_walked(report: dict[str, Any]) -> None:
    page = Elements(report_page(report))
    identities = [own["id"] for _, own, _ in page.found if "id" in own]
    assert len(identities) == len({*identities})
    assert all(
        str(own["href"])[1:] in identities and str(own["href"])[0] == "#"
        for own, _ in page.all("a")
    )
    assert [len(page.all(tag)) for tag in ("h1", "main", "nav", "header", "title")] == [1] * 5
    assert all(own.get("scope") in ("row", "col") for own, _ in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert not [own for _, own, _ in page.found if "src" in own] and "url(" not in report_page(
        report
    )


def test_backends_of_one_name_hide_nothing_from_each_other() -> None:
    report = large(20)
    report["tallies"] += [dict(tally) for tally in report["tallies"]]
    page = Elements(report_page(report))
    links = [own for own, text in page.all("a") if text.endswith("FAILED")]
    assert (
        len(page.all("details", **{"class": "failure"}))
        == len(links)
        == sum(t["verdict"] == "failed" for t in report["tallies"])
        > 2
    )


def test_two_thousand_cells_are_all_there() -> None:
    page = Elements(report_page(large(2000)))
    links = [own for own, text in page.all("a") if text.endswith("FAILED")]
    assert len(links) == sum(tally["verdict"] == "failed" for tally in large(2000)["tallies"])


# Pictures


def compared(actual: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    comparison = compare(actual, expected, np.full(expected.shape, 0.5))
    shown: dict[str, Any] = to_plain(picture("output", comparison, ("B", "H", "N", "E")))
    return shown


def test_of_a_large_slice_the_window_around_the_worst_is_shown() -> None:
    expected = np.arange(2.0 * 3 * 100 * 90).reshape(2, 3, 100, 90)
    actual = expected.copy()
    actual[1, 2, 50, 88] += 7
    shown = compared(actual, expected)
    assert (
        shown["index"] == [1, 2, 50, 88]
        and shown["axes"] == ["N", "E"]
        and shown["origin"] == [50 - WINDOW // 2, 90 - WINDOW]
    )
    row, column = 50 - shown["origin"][0], 88 - shown["origin"][1]
    wanted = actual[1, 2, 50, 88], expected[1, 2, 50, 88], 14
    assert tuple(shown[name][row][column] for name in ("actual", "expected", "ratio")) == wanted
    assert sum(not within for line in shown["within"] for within in line) == shown["wrong"] == 1
    assert len(shown["actual"]) == len(shown["actual"][0]) == WINDOW


@pytest.mark.parametrize("shape", [(), (3,), (1, 4), (2, 1, 3)])
def test_every_rank_has_a_picture(shape: tuple[int, ...]) -> None:
    shown = compared(np.ones(shape), np.zeros(shape))
    assert (
        shown["shape"] == [*shape]
        and shown["index"] == [0] * len(shape)
        and shown["actual"][0][0] == 1
    )


def test_what_json_cannot_say_is_a_word() -> None:
    shown = compared(np.array([[np.nan, np.inf, -np.inf]]), np.zeros((1, 3)))
    assert (
        shown["actual"] == [["nan", "inf", "-inf"]]
        and json.loads(json.dumps(shown, allow_nan=False)) == shown
    )


def test_the_report_for_machines_has_a_row_in_a_line() -> None:
    report = large(20) | {"words": ["[\n  1", "]"], "nothing": []}
    text = json_text(report)
    assert (
        json.loads(text) == report
        and max(map(len, text.splitlines())) > 100
        and len(text) < 0.6 * len(json.dumps(report, indent=1))
    )


def test_the_axes_are_the_laws() -> None:
    assert axes_of("alibi_attention", "output") == ("B", "H", "N", "E")
    assert axes_of("alibi_attention_grad", "output[1]") == ("B", "H", "M", "D")
    assert axes_of("self_attention", "output") == ("B", "N", "E") and axes_of(
        "causal_mask", "output"
    ) == ("N", "M")
