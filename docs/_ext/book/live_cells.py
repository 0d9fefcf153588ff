"""
Cells that run the specification in the browser: its own source, by Brython, on the little NumPy of
docs/live_cells.

Everything is served by the site itself, and works from a folder too: what Brython imports lies in
one script.
"""

import json
import shutil
import tomllib
from collections.abc import Iterator
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.traits import CHAPTERS

DOCS = Path(__file__).parents[2]
LIVE = DOCS / "live_cells"
CELLS: dict[str, dict[str, Any]] = tomllib.loads((LIVE / "cells.toml").read_text(encoding="utf-8"))
"""Code and sliders (least, first, most) of each operation's cell."""


def cell(operation: Operation) -> Iterator[str]:
    """The cell as HTML inside the page's text."""
    code, sliders = CELLS[operation.name]["code"].strip(), CELLS[operation.name]["sliders"]
    yield "Move the sizes, or change the code: the specification itself runs in your browser.\n"
    yield ".. raw:: html\n"
    lines = [
        f'<form class="live" aria-label="{operation.name} in the browser">',
        "<div class=sizes>",
    ]
    for letter, (least, first, most) in sliders.items():
        slider = f'<input type="range" name="{letter}" min="{least}" max="{most}" value="{first}">'
        lines.append(f"<label>{letter} {slider}<output>{first}</output></label>")
    lines += [
        "</div>",
        f'<label>Python<textarea rows="{code.count(chr(10)) + 3}" '
        f'spellcheck="false">{escape(code)}</textarea></label>',
    ]
    lines += [
        '<button type="submit">Run</button>',
        '<div class="shown" aria-live="polite"></div>',
        '<p class="said" role="status"></p>',
        "</form>",
    ]
    lines += [f'<script defer src="../_static/live/{name}"></script>' for name in SCRIPTS]
    yield from ("   " + line for line in "\n".join(lines).splitlines())
    yield ""


SCRIPTS = ("brython.js", "specification.js", "pictures.js", "live.js")
OWN = ("pictures.js", "live.js")


def modules() -> dict[str, str]:
    """The modules of specification, contract and docs/live_cells, by the names they have."""
    own = {path.stem: path for path in sorted(LIVE.glob("*.py"))}
    chapters = {
        f"attnverify.spec.{stem}": DOCS.parent / "spec" / f"{stem}.py"
        for stem in (*CHAPTERS, "arrays", "domains", "projections")
    }
    contract = {
        f"attnverify.contract.{path.stem}": path
        for path in sorted((DOCS.parent / "attnverify" / "contract").glob("*.py"))
        if path.stem != "__init__"
    }
    paths = own | chapters | contract
    found = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    where = {operation.name: operation.chapter for operation in CATALOGUE.values()}
    return found | {"chapters": f"CHAPTER_OF = {where!r}\n"}


PACKAGES = ("attnverify", "attnverify.spec", "attnverify.contract")
"""Empty in a cell: each imports the chapters that it needs."""


def unpacked(folder: Path) -> None:
    """Write the same as files, for any Python."""
    for package in PACKAGES:
        (folder / package.replace(".", "/")).mkdir(parents=True, exist_ok=True)
        (folder / package.replace(".", "/") / "__init__.py").touch()
    for name, source in modules().items():
        (folder / f"{name.replace('.', '/')}.py").write_text(source, encoding="utf-8")


def sources() -> dict[str, list[Any]]:
    """
    What Brython imports, as its virtual file system wants it: kind, source, imported modules,
    whether it is a package.
    """
    found: dict[str, list[Any]] = {name: [".py", text, []] for name, text in modules().items()}
    return library() | found | {package: [".py", "", [], True] for package in PACKAGES}


LIBRARY = ("sys", "json", "json.encoder", "json.decoder", "json.scanner", "_json", "re",
"python_re", "enum", "types",
           "itertools", "operator", "_operator", "math", "collections", "_collections_abc",
           "collections.abc", "_collections",
           "abc", "_py_abc", "_weakrefset", "_weakref", "keyword", "reprlib", "_thread",
           "functools", "_functools", "copyreg", "numbers",
           "heapq", "_heapq")  # fmt: skip
"""What of Python's library the specification and the cells import, and what that imports."""


def library() -> dict[str, Any]:
    """These modules as Brython has them; the whole library would be five megabytes."""
    text = (brython() / "brython_stdlib.js").read_text()
    everything, _ = json.JSONDecoder().raw_decode(text, text.index("{", text.index("var scripts")))
    return {name: everything[name] for name in ("$timestamp", *LIBRARY) if name in everything}


def brython() -> Path:
    """Where pip put Brython."""
    package = find_spec("brython")
    if package is None or package.origin is None:
        raise FileNotFoundError("brython: wanted the package of the extra 'docs', got none")
    return Path(package.origin).parent / "data"


def write(static: Path) -> None:
    """Brython, the modules and the cell's script, beside the site's other static files."""
    static.mkdir(parents=True, exist_ok=True)
    shutil.copy(brython() / "brython.js", static / "brython.js")
    for name in OWN:
        shutil.copy(LIVE / name, static / name)
    text = f"__BRYTHON__.use_VFS = true;\n__BRYTHON__.update_VFS({json.dumps(sources())});\n"
    (static / "specification.js").write_text(text)
