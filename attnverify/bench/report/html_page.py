"""The results as one page of HTML that needs nothing beside it."""

import re
from importlib import import_module

from attnverify.bench.report.goals import GOALS, closing_lines, measured_words, outcome
from attnverify.bench.report.plots import plots
from attnverify.bench.report.results import Record
from attnverify.bench.report.tables import TITLES, groups, rows
from attnverify.report.html import Section, page
from attnverify.report.html.document import header_cells, paragraphs, table
from attnverify.report.html.elements import Markup, element


def report_page(results: dict[str, list[Record]]) -> str:
    """All devices with their last results, ``{"<device>, <date>": records}``."""
    sections = [
        section
        for number, (title, records) in enumerate(results.items())
        for section in device_sections(number, title, records)
    ]
    lead = paragraphs(LEAD, "" if results else "No results are committed yet.")
    return page("Benchmarks of attention", lead, sections)


LEAD = (
    "Implementations of one case were sampled in turn in one process. Each was judged before it "
    "was timed, and its timed outputs were held "
    "to the law afterwards. Times are medians with their quantiles of 20 and 80 %; ceilings were "
    "measured in the same run."
)


def device_sections(number: int, title: str, records: list[Record]) -> list[Section]:
    device = next((record["device"] for record in records if "device" in record), "cpu")
    return [
        Section(f"goals-{number}", f"{title}: goals", goals(number, device, records)),
        Section(f"plots-{number}", f"{title}: plots", Markup("".join(figures(records)))),
        Section(f"times-{number}", f"{title}: times", Markup("".join(cases(number, records)))),
        Section(f"machine-{number}", f"{title}: machine", machine(records)),
    ]


def goals(number: int, device: str, records: list[Record]) -> Markup:
    """The table of goals of this device."""
    found = [outcome(goal, records) for goal in GOALS[device]]
    lines = [
        element(
            "tr",
            *(
                element("td", cell)
                for cell in (
                    one.goal.what,
                    one.goal.against,
                    limits(one.goal.floor, one.goal.goal),
                    measured_words(one),
                )
            ),
        )
        for one in found
    ]
    known = table(
        "Goals",
        header_cells("what", "against", "floor, goal", "measured"),
        lines,
        f"goals-{number}-table",
    )
    grown = [line for line in closing_lines(records, device) if line.startswith("growth")]
    return Markup(known + paragraphs(*grown))


def limits(floor: float, goal: float) -> str:
    return f"{floor:g}, {goal:g}" if goal != float("inf") else f"{floor:g}, views"


def figures(records: list[Record]) -> list[Markup]:
    """Each plot with its caption."""
    return [
        element("figure", Markup(with_unique_ids(svg, str(number))), element("figcaption", caption))
        for number, (caption, svg) in enumerate(plots(records).items())
    ]


def with_unique_ids(svg: str, number: str) -> str:
    """Names inside a plot are its own: another plot on the page may use the same."""
    svg = re.sub(r'\bid="', f'id="plot{number}-', svg)
    svg = re.sub(r'href="#', f'href="#plot{number}-', svg)
    return re.sub(r"url\(#", f"url(#plot{number}-", svg).replace("<svg ", '<svg role="img" ', 1)


def cases(number: int, records: list[Record]) -> list[Markup]:
    return [
        table(
            name,
            header_cells(*TITLES),
            [element("tr", *(element("td", cell) for cell in cells)) for cells in rows(group)],
            f"case-{number}-{place}",
        )
        for place, (name, group) in enumerate(groups(records))
    ]


def machine(records: list[Record]) -> Markup:
    """Versions, ceilings and clocks, as the records have them."""
    told = sorted(
        {f"{record['label']}: {record['versions']}" for record in records if record.get("versions")}
    )
    ceilings = {
        f"{record['dtype']} {name}: {value:.3g} a second"
        for record in records
        for name, value in record.get("ceilings", {}).items()
    }
    clocks = sorted(
        {str(record["clocks"]["before"]) for record in records if record.get("clocks")}
    )[:1]
    return element("ul", *(element("li", line) for line in (*told, *sorted(ceilings), *clocks)))


def available() -> str:
    """What a report needs and does not find; nothing where all is there."""
    missing = []
    for package in ("rich", "matplotlib"):
        try:
            import_module(package)
        except ImportError:
            missing.append(package)
    return f"bench-report needs {' and '.join(missing)}: pip install '.[bench]'" if missing else ""
