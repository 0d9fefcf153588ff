"""
Documents: pages of HTML that need nothing beside them, rendered from templates by Jinja2.

Whatever no template has written is escaped: text is text wherever it comes from.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

HERE = Path(__file__).parent
TEMPLATES = HERE / "templates"

UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What no page may hold, and what turns the direction of the text around it."""


@dataclass(frozen=True)
class Section:
    """One part of a page: the anchor, the heading, what stands in it."""

    anchor: str
    heading: str
    body: Markup


def render_page(title: str, lead: Markup, sections: list[Section]) -> str:
    """
    Render a whole page. It loads nothing, and no script runs in it but its own: the policy in its
    head names that by its hash.
    """
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return render(
        "document.html",
        title=title,
        lead=lead,
        sections=sections,
        policy=content_policy(script),
        style=Markup(style),
        script=Markup(script),
    )


def content_policy(script: str) -> str:
    """Forbid everything but inline styles and this script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def render(template: str, folder: Path = TEMPLATES, **data: Any) -> Markup:
    """Fill a template of the folder, which may use the macros of this package's own."""
    return Markup(_environment(folder).get_template(template).render(data))


@cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=to_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def to_printable(value: Any) -> Any:
    """Put a mark in place of each character that cannot be seen; None is nothing."""
    if isinstance(value, Markup):
        return value
    return UNSEEN.sub("\N{REPLACEMENT CHARACTER}", "" if value is None else str(value))
