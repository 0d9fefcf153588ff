"""
List every public source that the book links to: its kind, the address, and what it is.

    python docs/list_links.py
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parent / "data"
KINDS = {"papers": "paper", "code": "code", "tools": "tool"}
"""The tables of facts.toml that hold a title and an address."""


def public_links() -> Iterator[tuple[str, str, str]]:
    """Kind, address and title, in the order of the files."""
    read = tomllib.loads((DATA / "facts.toml").read_text(encoding="utf-8"))
    for table, kind in KINDS.items():
        for title, address in read[table].values():
            yield kind, address, title.replace("*", "")
    for kind, found in tomllib.loads((DATA / "threads.toml").read_text(encoding="utf-8")).items():
        for source, address in found.items():
            yield kind.removesuffix("s"), address, source


if __name__ == "__main__":
    for kind, address, title in public_links():
        print(f"{kind:<7} {address}  {title}")
