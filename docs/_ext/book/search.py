"""
Search that shows the words around a hit when the site is opened from a folder too, where a browser
lets no page read another: their texts lie in a script that the page of the search loads.
"""

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "search_texts.js"
ARTICLE = re.compile(r'<article role="main"[^>]*>(.*)</article>', re.DOTALL)
UNREAD = re.compile(
    r"<(script|style|svg|details|textarea)\b.*?</\1>|<a class=\"headerlink.*?</a>", re.DOTALL
)

INLINE = re.compile(r"</?(?:a|cite|code|em|span|strong)\b[^>]*>")


def load(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Called by Sphinx for each page, before it is written."""
    if page == "search":
        for name in ("texts.js", SCRIPT.name):
            app.add_js_file(f"search/{name}")


def write(site: Path) -> None:
    """The texts of all pages, by their addresses, beside the script that answers with them."""
    folder = site / "_static" / "search"
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        path.relative_to(site).as_posix(): text
        for path in sorted(site.rglob("*.html"))
        if (text := text_of(path.read_text(encoding="utf-8")))
    }
    said = f"window.pageTexts = {json.dumps(texts, ensure_ascii=False)};\n"
    (folder / "texts.js").write_text(said, encoding="utf-8")
    shutil.copy(SCRIPT, folder / SCRIPT.name)


def text_of(html: str) -> str:
    """What of a page is read, in one line."""
    found = ARTICLE.search(html)
    words = re.sub(r"<[^>]*>", " ", INLINE.sub("", UNREAD.sub(" ", found[1]))) if found else ""
    return " ".join(unescape(words).split())
