"""
Markup that is escaped by construction: text is text wherever it comes from, unless an element of
ours has made it.
"""

import re
from html import escape
from typing import Any

EMPTY = frozenset({"meta", "input"})
"""Elements without an end; those of SVG have one."""

UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What no page may hold, and what turns the direction of the text around it."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """
    One element with its children; whatever is no Markup is escaped.

    ``class_`` stands for ``class``, ``aria_label`` for ``aria-label``; True is an attribute without
    a value, None and False are left out.

    >>> element("td", "1 < 2", class_="passed")
    '<td class="passed">1 &lt; 2</td>'
    """
    written = "".join(attribute(key, value) for key, value in attributes.items())
    return Markup(
        f"<{name}{written}>" if name in EMPTY else f"<{name}{written}>{join(children)}</{name}>"
    )


def attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    key = key.rstrip("_").replace("_", "-")
    return f" {key}" if value is True else f' {key}="{escape(printable(value))}"'


def join(children: Any) -> Markup:
    """Children in a row, lists among them too; None is nothing."""
    if isinstance(children, Markup):
        return children
    if isinstance(children, (list, tuple)):
        return Markup("".join(map(join, children)))
    return Markup("" if children is None else escape(printable(children), quote=False))


def printable(text: Any) -> str:
    """The text with a mark in place of each character that cannot be seen."""
    return UNSEEN.sub("\N{REPLACEMENT CHARACTER}", str(text))
