"""
Take pictures of the pages that readers see, to be looked at: five pages of the built book and three
reports, at four widths, in light and in dark, and on paper.

    python docs/take_screenshots.py build/docs build/screenshots

The book must be built there. The reports are made first, of kernels that lie below.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import Browser, Page, chromium, open_page, wait_for  # noqa: E402

WIDTHS = (390, 1020, 1366, 1920)
PATIENCE = 180_000.0
"""Milliseconds for a picture of a long page on a busy machine."""
BOOK = (
    "index.html",
    "operations/rel_shift.html",
    "operations/alibi_attention.html",
    "operations/transformer_xl_layer.html",
    "chapters/gallery.html",
)

BEFORE = """
from attnverify import numpy_ref as right

ARRAYS = "numpy"


def softmax(score, mask=None):
    return right.softmax(score, mask)


def alibi_attention(query, key, value, visible=None):
    return right.alibi_attention(query, key, value, visible) * 1.001
"""
AFTER = """
from attnverify import numpy_ref as right

ARRAYS = "numpy"


def softmax(score, mask=None):
    weights = right.softmax(score, mask)
    weights[..., -1, -1] *= 1.001
    return weights


def alibi_attention(query, key, value, visible=None):
    return right.alibi_attention(query, key, value, visible)
"""
RUN = "run my_kernel.py --profile quick --dtype float32 --dtype float64"


def make_reports(folder: Path) -> list[Path]:
    """Make a run report, a comparison of two runs and a bench report."""
    for name, source in ("old", BEFORE), ("new", AFTER):
        (folder / "my_kernel.py").write_text(source)
        _attnverify(f"{RUN} --report {name}.html --report-json {name}.json", folder, status=1)
    _attnverify("compare old.json new.json -o comparison.html", folder, status=1)
    results = ROOT / "benchmarks" / "results"
    _attnverify(f"bench-report --results {results} -o bench.html", folder, status=0)
    return [folder / f"{name}.html" for name in ("new", "comparison", "bench")]


def _attnverify(line: str, folder: Path, status: int) -> None:
    command = [sys.executable, "-c", "from attnverify.cli import main; exit(main())", *line.split()]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != status:
        raise RuntimeError(f"attnverify {line}: wanted status {status}\n{done.stdout}{done.stderr}")


def _settle(page: Page) -> None:
    """Wait for the formulas, the live cell and the pictures."""
    wait_for(page, "!document.querySelector('.math') || !!window.MathJax?.startup?.promise")
    page.evaluate("(window.MathJax?.startup?.promise ?? Promise.resolve()).then(() => 1)")
    page.evaluate("document.querySelector('.live')?.scrollIntoView()")
    wait_for(page, "(document.querySelector('.live') ?? {dataset: {answered: 1}}).dataset.answered")
    page.evaluate("[...document.images].forEach((each) => { each.loading = 'eager'; })")
    page.evaluate(  # what a reader would have painted by scrolling there
        "document.querySelectorAll('*').forEach((e) => { e.style.contentVisibility = 'visible'; })"
    )
    wait_for(page, "[...document.images].every((each) => each.complete)")


def take_pictures(browser: Browser, path: Path, folder: Path) -> list[Path]:
    """Take a page at each width, in light and in dark, and print it."""
    taken = []
    for dark in (False, True):
        for width in WIDTHS:
            page = open_page(browser, path.as_uri(), width=width, dark=dark)
            _settle(page)
            page.evaluate("scrollTo(0, 0)")
            name = f"{path.stem}-{width}-{'dark' if dark else 'light'}.png"
            page.screenshot(path=folder / name, full_page=True, timeout=PATIENCE)
            if (width, dark) == (WIDTHS[-1], False):
                page.pdf(path=folder / f"{path.stem}.pdf", format="A4")
            page.close()
            taken.append(folder / name)
    return taken


def main(book: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [*(book / name for name in BOOK), *make_reports(folder)]
    with chromium() as browser:
        for path in paths:
            for taken in take_pictures(browser, path.resolve(), folder):
                print(taken)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
