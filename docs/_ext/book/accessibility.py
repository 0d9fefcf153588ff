"""
What the theme and Sphinx leave out for who reads by keyboard or screen reader; axe-core found it,
``tests/docs/test_site_in_browser.py`` holds it.
"""

import re
from typing import Any

LINKED_NAME = re.compile(r'(?<=<span class="doc">)\w+(?=</span>)')
SIGNATURE = re.compile(r'<dt class="sig .*?</dt>', re.DOTALL)
LISTED = {
    "<dl>": '<div class="parameters">',
    "</dl>": "</div>",
    "<dd>": '<div class="parameter">',
    "</dd>": "</div>",
}


def mend(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Called by Sphinx for each page, before it is written."""
    for name in ("body", "furo_navigation_tree"):
        if name in context:
            context[name] = mended(context[name])


def mended(html: str) -> str:
    """
    Headings have a level, what scrolls can be reached by the keyboard, long names break at their
    underscores, and the parameters of a signature are no list of terms.
    """
    html = html.replace('role="heading">', 'role="heading" aria-level="2">')
    html = html.replace("<pre>", '<pre tabindex="0">').replace(
        '<div class="math notranslate', '<div tabindex="0" class="math notranslate'
    )
    html = html.replace("<figure ", '<figure tabindex="0" ')
    html = html.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
    html = LINKED_NAME.sub(lambda found: found[0].replace("_", "_<wbr>"), html)
    return SIGNATURE.sub(lambda found: without_list(found[0]), html)


def without_list(signature: str) -> str:
    for tag, better in LISTED.items():
        signature = signature.replace(tag, better)
    return signature
