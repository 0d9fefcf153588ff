"""
Cells that run the specification in the browser: its own source, by Brython, on the little NumPy of
docs/live_cells.

Everything is served by the site itself, and works from a folder too: what Brython imports lies in
one script.
"""

import json
import shutil
from collections.abc import Iterator
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnverify.catalogue.operation import Operation
from attnverify.catalogue.traits import CHAPTERS

DOCS = Path(__file__).parents[2]
SHIFT = "x = np.arange(1.0, N * M + 1).reshape(N, M)\nshow = {{'before': x, 'after': {}(x)}}"
CELLS: dict[str, tuple[str, dict[str, tuple[int, int, int]]]] = {
    "shift_right": (SHIFT.format("shift_right"), {"N": (1, 3, 7), "M": (1, 4, 8)}),
    "rel_shift": (SHIFT.format("rel_shift"), {"N": (1, 3, 7), "M": (1, 4, 8)}),
    "causal_mask": ("show = {'visible': causal_mask(N, M)}", {"N": (1, 3, 8), "M": (1, 5, 8)}),
    "get_alibi_biases": (
        "biases = get_alibi_biases(H, causal_mask(N, M))\nshow = {f'head {h}': biases[h] for h in "
        "range(H)}",
        {"H": (1, 2, 8), "N": (1, 3, 6), "M": (1, 4, 6)},
    ),
    "update_mems": (
        "old = np.arange(1.0, S + 1).reshape(1, S, 1)\nnew = np.arange(S + 1.0, S + N + "
        "1).reshape(1, N, 1)\n"
        "(mems,) = update_mems([new], [old], mem_len)\n"
        "show = {'memory': old.reshape(1, S), 'segment': new.reshape(1, N), 'memory for the next': "
        "mems.reshape(1, mems.size)}",
        {"S": (0, 3, 6), "N": (1, 2, 6), "mem_len": (0, 3, 10)},
    ),
}
"""Code and sliders (least, first, most) of the operations that have a cell."""


def cell(operation: Operation) -> Iterator[str]:
    """The cell as HTML inside the page's text."""
    if operation.name not in CELLS:
        return
    code, sliders = CELLS[operation.name]
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


SCRIPTS = ("brython.js", "specification.js", "live.js")


def sources() -> dict[str, list[Any]]:
    """
    What Brython imports, as its virtual file system wants it: kind, source, imported modules,
    whether it is a package.
    """
    files = {path.stem: path for path in sorted((DOCS / "live_cells").glob("*.py"))}
    chapters = {
        f"attnverify.spec.{stem}": DOCS.parent / "spec" / f"{stem}.py"
        for stem in (*CHAPTERS, "shapes")
    }
    found: dict[str, list[Any]] = {
        name: [".py", path.read_text(), []] for name, path in {**files, **chapters}.items()
    }
    for package in ("attnverify", "attnverify.spec"):
        found[package] = [
            ".py",
            "",
            [],
            True,
        ]  # empty: each cell imports the chapters that it needs
    return library() | found


LIBRARY = ("sys", "json", "json.encoder", "json.decoder", "json.scanner", "_json", "re",
"python_re", "enum", "types",
           "itertools", "operator", "_operator", "math", "collections", "_collections_abc",
           "collections.abc", "_collections",
           "abc", "_py_abc", "_weakrefset", "_weakref", "keyword", "reprlib", "_thread",
           "functools", "_functools", "copyreg",
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
    shutil.copy(DOCS / "live_cells" / "live.js", static / "live.js")
    text = f"__BRYTHON__.use_VFS = true;\n__BRYTHON__.update_VFS({json.dumps(sources())});\n"
    (static / "specification.js").write_text(text)
