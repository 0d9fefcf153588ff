"""What an operation has meant since which version, from CHANGELOG.md."""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from attnverify.catalogue.operation import Operation
from book import facts

CHANGELOG = Path(__file__).parents[3] / "CHANGELOG.md"
VERSION = re.compile(r"^## (\S+)$", re.MULTILINE)


def section(operation: Operation) -> Iterator[str]:
    """The changes that name the operation or its gradient, the newest first."""
    versions = [version for version, _ in changes()]
    names = {name for name in (operation.name, f"{operation.name}_grad")}
    named = [
        (version, text)
        for version, texts in changes()
        for text in texts
        if names & set(re.findall(r"`(\w+)`", text))
    ]
    since = facts.of(operation).get("since", versions[-1])
    yield f"Specified since {since}; this book is of {versions[0]}.\n"
    for version, text in named:
        yield f"- {version}: {to_rst(text)}"
    if not named:
        yield "Its meaning has not changed since.\n"
    yield ""


@lru_cache
def changes() -> list[tuple[str, list[str]]]:
    """Versions from the newest to the oldest, each with its entries in one line each."""
    _, *parts = VERSION.split(CHANGELOG.read_text(encoding="utf-8"))
    return [(version, entries(body)) for version, body in zip(parts[::2], parts[1::2], strict=True)]


def entries(body: str) -> list[str]:
    found = re.findall(r"^- (.*(?:\n  .*)*)", body, re.MULTILINE)
    return [" ".join(entry.split()) for entry in found]


def to_rst(text: str) -> str:
    """Markdown's code is literal text."""
    return re.sub(r"`([^`]+)`", r"``\1``", text)
