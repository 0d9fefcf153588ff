"""
The shell of a page: head, landmarks, styles and the small script. What stands in it is the business
of who fills it.
"""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from attnverify.report.html.elements import Markup, element, join

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """One part of a page: the anchor, the heading, what stands in it."""

    anchor: str
    heading: str
    body: Markup


def page(title: str, lead: Markup, sections: list[Section]) -> str:
    """
    A whole page. It loads nothing, and no script runs in it but its own: the policy in its head
    names that by its hash.
    """
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element(
        "body",
        element("a", "Skip to the contents", href="#contents", class_="skip"),
        element("header", element("h1", title), lead),
        element(
            "nav",
            element(
                "ul",
                [element("li", element("a", s.heading, href=f"#{s.anchor}")) for s in sections],
            ),
            aria_label="Sections",
        ),
        element(
            "main", [render_section(section) for section in sections], id="contents", tabindex="-1"
        ),
        element("script", Markup(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def render_section(section: Section) -> Markup:
    heading = element("h2", section.heading, id=f"{section.anchor}-heading")
    return element(
        "section",
        heading,
        section.body,
        id=section.anchor,
        aria_labelledby=f"{section.anchor}-heading",
    )


def table(caption: str, head: list[Markup], rows: list[Markup], identity: str) -> Markup:
    """A table with a caption, which scrolls sideways where it is too wide, by keyboard too."""
    whole = element(
        "table",
        element("caption", caption, id=f"{identity}-caption"),
        element("thead", element("tr", head)),
        element("tbody", rows),
        id=identity,
    )
    return element(
        "div",
        whole,
        class_="wide",
        role="region",
        aria_labelledby=f"{identity}-caption",
        tabindex="0",
    )


def header_cells(*titles: str) -> list[Markup]:
    return [element("th", title, scope="col") for title in titles]


def to_copy(line: str) -> Markup:
    """A line of the shell, with a button that copies it where there is a script."""
    return element(
        "p",
        element("code", line),
        " ",
        element("button", "Copy", type="button", class_="copy", hidden=True),
        class_="line",
    )


def paragraphs(*texts: Markup | str) -> Markup:
    return join([element("p", text) for text in texts if text])
