"""
What a page says beside the specification, from docs/data/facts.toml: why an operation exists, who
published it, and its arguments in words.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnverify.catalogue.operation import Operation
from book.docstrings import below

DATA = Path(__file__).parents[2] / "data"
SEED = re.compile(r"\bseeds?\s+\d{3}\b")
PARENTHESIS = re.compile(r"(\s*)\(([^()]*)\)([.,;:]?)")


@lru_cache
def read(name: str = "facts") -> dict[str, Any]:
    """One of the files of facts."""
    return tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))


def of(operation: Operation) -> dict[str, Any]:
    """The facts of an operation; a gradient has those of its forward operation."""
    return dict(read()["operations"][operation.forward.name])


def section_why(operation: Operation) -> Iterator[str]:
    """Why it exists and where it is used, then its papers and public code."""
    found = of(operation)
    yield f"{found['why']}\n"
    for title, key, kind in (("Paper", "papers", "papers"), ("Public code", "code", "code")):
        links = [link(*read()[kind][name]) for name in found[key]]
        yield f"**{title}**: {'; '.join(links)}.\n"


def derivation(operation: Operation) -> Iterator[str]:
    """How the gradient follows from the formula."""
    found = read("derivations")
    text = found["derivations"][operation.name].strip()
    parts = (below(part) if part.startswith(".. math::") else part for part in text.split("\n\n"))
    yield f"**How it follows.** {found['introduction']}\n"
    yield "\n\n".join(parts) + "\n"


def link(text: str, url: str) -> str:
    """A link in reStructuredText; what was set in italics is the text of a link as it is."""
    return f"`{text.replace('*', '')} <{url}>`__"


def linked_source(source: str) -> str:
    """The source of a fault, linked to where it can be read."""
    url = next((found[source] for found in read("threads").values() if source in found), "")
    return link(source, url) if url else ""


def meaning(operation: Operation, argument: str) -> str:
    """An argument in words."""
    own = of(operation).get("arguments", {})
    return str(own.get(argument) or read()["arguments"][argument])


def shape(operation: Operation, argument: str) -> str:
    """The axes of an argument; of a mask those that it broadcasts to."""
    axes = operation.axes.get(argument)
    if argument in ("mask", "visible"):
        axes = max(operation.traits.mask_axes, key=lambda shape: len(re.findall("[A-Z]", shape)))
    return str(read()["shapes"].get(argument) or f"[{axes}]")


def section_arguments(operation: Operation) -> Iterator[str]:
    """Every argument in words, and the letters of their shapes."""
    yield ".. list-table::\n   :header-rows: 1\n   :class: arguments\n"
    yield "   * - argument\n     - shape\n     - what it is"
    for name in operation.arguments:
        told = shape(operation, name), meaning(operation, name)
        yield f"   * - ``{name}``\n     - {told[0]}\n     - {told[1]}"
    yield ""
    said = [f"{letter}: {words}" for letter, words in operation.letters.items()]
    if said:
        yield f"The letters: {'; '.join(said)}.\n"


def section_symbols(operation: Operation) -> Iterator[str]:
    """What the formula's symbols are, beside it."""
    own = of(operation).get("symbols", "")
    if "query" in operation.arguments or "score" in operation.arguments:
        own = f"i counts queries and j keys. {own}".rstrip()
    if operation.gradient:
        own = f"{own} In the gradient a bar is the derivative of the loss by what is under it."
    if own:
        yield f"{own.strip()}\n"


def without_seeds(text: str) -> str:
    """
    Text as readers see it: the repository names the documents that it corrects by the project's own
    numbers too, in parentheses. What stands beside them there, and every line end, is kept.
    """
    return PARENTHESIS.sub(lambda found: public(found) if SEED.search(found[2]) else found[0], text)


def public(parenthesis: re.Match[str]) -> str:
    """What readers can open, of the sources in a parenthesis."""
    kept = [source for source in parenthesis[2].split(";") if not SEED.search(source)]
    text = f"{parenthesis[1]}({';'.join(kept).strip()})" if kept else ""
    return text + parenthesis[3] + "\n" * (parenthesis[0].count("\n") - text.count("\n"))


def with_links(text: str) -> str:
    """Text in which the names of sources are links to where they can be read."""
    named = {
        " ".join(name.split()): url
        for found in read("threads").values()
        for name, url in found.items()
    }
    names = sorted(named, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, names)))
    return pattern.sub(lambda found: link(found[0], named[found[0]]), text)
