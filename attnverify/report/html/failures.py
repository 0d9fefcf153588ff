"""
The failures of a report: root causes first, then each failed cell with cause, pictures, recipe and
the line that replays it.
"""

import re
import shlex
from typing import Any

from attnverify.report.html.document import paragraphs, to_copy
from attnverify.report.html.elements import Markup, element, join
from attnverify.report.html.heatmaps import heatmaps, in_numbers

PICTURED = 60
"""As many failed cells have pictures; the root causes come first, and a replay shows the others."""

DEFAULT_FOLDER = ".attnverify/failures"

Report = dict[str, Any]
Tally = dict[str, Any]


Places = dict[tuple[str, str], str]
"""The anchors of failed cells by backend and name."""


def name_of(tally: Tally) -> str:
    return f"{tally['implementation']} {tally['dtype']} {tally['aspect']}"


def root_causes(report: Report, failed: list[Tally], anchors: dict[int, str]) -> Markup:
    """The causes from the lowest rung upwards: mended first what stands first."""
    causes = report.get("root_causes", [])
    places = {(tally["backend"], name_of(tally)): anchors[id(tally)] for tally in failed}
    waiting = sum(len(cause["blocked"]) for cause in causes)
    said = (
        f"{counted(len(causes), 'root cause')}, {counted(waiting, 'cell')} blocked by what "
        "stands here. Mend the first one first."
    )
    return join(
        [
            paragraphs(said),
            element("ol", [render_cause(cause, places) for cause in causes], class_="causes"),
        ]
    )


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def render_cause(cause: dict[str, Any], places: Places) -> Markup:
    title = element(
        "p", element("strong", cause["cause"]), f" ({cause['backend']}, {cause['rung']})"
    )
    return element(
        "li",
        title,
        render_cell_list("Shown by", cause["cells"], cause, places),
        render_cell_list("Blocks", cause["blocked"], cause, places),
    )


def render_cell_list(
    words: str, names: list[str], cause: dict[str, Any], places: Places
) -> Markup | None:
    """The cells of a cause, each with the way to it; many of them folded away."""
    if not names:
        return None
    found = [(name, places.get((cause["backend"], name))) for name in names]
    shown = [
        element("li", element("a", name, href=f"#{anchor}") if anchor else name)
        for name, anchor in found
    ]
    if len(shown) <= 6:
        return element("div", f"{words}:", element("ul", shown), class_="few")
    return element(
        "details", element("summary", f"{words} {len(shown)} cells"), element("ul", shown)
    )


def told_in_full(cause: dict[str, Any]) -> tuple[str, str]:
    """The cell that the terminal shows of a cause: in float32, where that fails."""
    return cause["backend"], next(
        (name for name in cause["cells"] if " float32 " in name), cause["cells"][0]
    )


def failures(report: Report, failed: list[Tally], anchors: dict[int, str]) -> Markup:
    """Every failed cell; the one that tells of each root cause is open."""
    first = {told_in_full(cause) for cause in report.get("root_causes", []) if cause["cells"]}
    found = []
    for number, tally in enumerate(failed):
        anchor = anchors[id(tally)]
        title = (
            f"{tally['implementation']} of {tally['backend']} in {tally['dtype']}: "
            f"{tally['aspect']}"
        )
        findings = [
            finding(words, tally, report, f"{anchor}-{i}", number < PICTURED)
            for i, words in enumerate(tally["findings"] or [tally["reason"]])
        ]
        summary = element("summary", element("h3", title))
        found.append(
            element(
                "details",
                summary,
                findings,
                id=anchor,
                class_="failure",
                open=(tally["backend"], name_of(tally)) in first,
            )
        )
    return join(found)


def finding(words: str, tally: Tally, report: Report, identity: str, with_pictures: bool) -> Markup:
    """
    One finding as it was printed, and what is known of it beside: its cause, its pictures, its
    recipe, the line that replays it.
    """
    exhibits = tally.get("exhibits", {})
    shown = [
        exhibits[name]
        for name in dict.fromkeys(re.findall(r"attnverify replay ([0-9a-f]{12})", words))
        if name in exhibits
    ]
    told_below = {
        f"{label}: {exhibit[label]}" for exhibit in shown for label in ("cause", "recipe", "replay")
    }
    text = "\n".join(line for line in words.split("\n") if line.strip() not in told_below)
    return element(
        "article",
        element("pre", text),
        [render_evidence(e, report, f"{identity}-{i}", with_pictures) for i, e in enumerate(shown)],
        aria_label=f"Finding {identity}",
    )


def render_evidence(
    exhibit: dict[str, Any], report: Report, identity: str, with_pictures: bool
) -> Markup:
    cause = (
        element("p", element("strong", "Likely cause: "), exhibit["cause"], class_="cause")
        if exhibit["cause"]
        else None
    )
    again = join([element("h4", "See it again"), to_copy(replay_line(exhibit, report))])
    recipe = join(
        [element("h4", "Recipe, shrunk"), element("p", element("code", exhibit["recipe"]))]
    )
    return join([cause, again, recipe, pictures(exhibit, identity) if with_pictures else None])


def pictures(exhibit: dict[str, Any], identity: str) -> Markup:
    """The picture of the smallest case, and that of a case as it was drawn where it shows more."""
    small, drawn, found = exhibit.get("picture"), exhibit.get("drawn"), list[Markup]()
    if small:
        one = drawn and small["total"] == 1
        found.append(
            in_numbers(small, f"{identity}-small") if one else heatmaps(small, f"{identity}-small")
        )
    if drawn:
        found.append(element("h4", "The same failure before it was shrunk"))
        found += [
            heatmaps(drawn["picture"], f"{identity}-drawn"),
            element("p", element("code", drawn["recipe"])),
        ]
    return join(found)


def replay_line(exhibit: dict[str, Any], report: Report) -> str:
    """The line that replays it, also where the failures are kept elsewhere."""
    folder = report.get("failures", DEFAULT_FOLDER)
    return exhibit["replay"] + (
        f" --failures {shlex.quote(folder)}" if folder != DEFAULT_FOLDER else ""
    )
