"""
What a reader finds on the page of every operation: why it exists, its paper and public code, every
argument and letter in words, the formula beside its code, the whole function with a link to its
source, the derivation of the gradient, traps with links, a bound in numbers, which implementations
keep it and how fast they are, and what it has meant since when.
"""

import re
import sys
from collections.abc import Callable
from functools import cache

import pytest

from attnverify import ROOT
from attnverify.catalogue.operation import CATALOGUE, INNER, Operation

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from book import docstrings, facts, pages, pitfalls

OPERATIONS = [operation.name for operation in pages.pages_of_the_book()]
LINK = r"`[^`<]+ <https://[^>`]+>`__"


@cache
def page_of(name: str) -> str:
    return pages.page(CATALOGUE[name])


def section(page: str, title: str) -> str:
    """The text below a heading, to the next one of its rank."""
    _, _, rest = page.partition(f"\n{title}\n{'-' * len(title)}\n")
    return re.split(r"\n[^\n]+\n-{4,}\n", rest)[0]


def why(page: str, operation: Operation) -> bool:
    first = page.partition("**Paper**")[0]
    return len(re.findall(r"[a-z)][.;](?:\s|$)", first)) >= 2


def links_to_the_paper(page: str, operation: Operation) -> bool:
    return re.search(rf"^\*\*Paper\*\*: {LINK}", page, re.MULTILINE) is not None


def links_to_public_code(page: str, operation: Operation) -> bool:
    return re.search(rf"^\*\*Public code\*\*: {LINK}", page, re.MULTILINE) is not None


def arguments_in_words(page: str, operation: Operation) -> bool:
    rows = dict(re.findall(r"   \* - ``(\w+)``\n     - .*\n     - (.+)\n", page))
    both = (operation, *filter(None, [operation.gradient]))
    return all(len(rows.get(name, "")) > 10 for each in both for name in each.arguments)


def letters(page: str, operation: Operation) -> bool:
    told = " ".join(re.findall(r"^The letters: (.*)$", page, re.MULTILINE))
    used = operation.sizes | ({INNER} if operation.traits.option else set())
    return all(re.search(rf"(^|; ){letter}: \w", told) for letter in used)


def formula_beside_its_code(page: str, operation: Operation) -> bool:
    text = section(page, "The formula and its code")
    formulas = len(docstrings.formulas(operation.specification))
    sides = re.findall(r"container:: sides\n\n   \.\. math::.*\n\n   \.\. container:: code\n", text)
    return len(sides) == formulas and (formulas > 0 or "It has no formula" in text)


def whole_function_and_its_source(page: str, operation: Operation) -> bool:
    link = rf":caption: `[^`]* <\.\./_modules/[\w/]+\.html#{operation.name}>`__\n\n   def "
    return re.search(link + rf"{operation.name}\(", page) is not None


def derivation_of_the_gradient(page: str, operation: Operation) -> bool:
    text = section(page, "The gradient")
    return not operation.gradient or len(text.partition("**How it follows.**")[2]) > 300


def traps_with_links(page: str, operation: Operation) -> bool:
    text = section(page, "Traps")
    sources = {fault.source for fault in pitfalls.faults_of(operation)} - {"this project"}
    return ":class: faults" in text and all(facts.linked_source(name) in text for name in sources)


def numerics(page: str, operation: Operation) -> bool:
    text = section(page, "Numerics")
    symbols = text.count("\nHere ") == text.count(".. math::") > 0
    return "bit for bit" in text if operation.exact else symbols and "run::" in text


def implementations_and_their_speed(page: str, operation: Operation) -> bool:
    text = section(page, "Where it stands")
    told = re.search(r"^Speed, .+ on .+:$", text, re.MULTILINE)
    return "   * - ``torch_impl" in text and told is not None


def versions(page: str, operation: Operation) -> bool:
    return "Specified since " in section(page, "Versions of its meaning")


PARTS: tuple[Callable[[str, Operation], bool], ...] = (
    why,
    links_to_the_paper,
    links_to_public_code,
    arguments_in_words,
    letters,
    formula_beside_its_code,
    whole_function_and_its_source,
    derivation_of_the_gradient,
    traps_with_links,
    numerics,
    implementations_and_their_speed,
    versions,
)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_page_has_every_part(name: str) -> None:
    page = page_of(name)
    assert [part.__name__ for part in PARTS if not part(page, CATALOGUE[name])] == []


@pytest.mark.parametrize(
    ("part", "pattern"),
    [
        (why, r"A network .*"),
        (links_to_the_paper, r"\*\*Paper\*\*.*"),
        (links_to_public_code, r"\*\*Public code\*\*.*"),
        (arguments_in_words, r"the share that is dropped.*"),
        (letters, r"The letters: .*"),
        (formula_beside_its_code, r"\.\. container:: sides"),
        (whole_function_and_its_source, r"#dropout>"),
        (derivation_of_the_gradient, r"\*\*How it follows\.\*\*"),
        (traps_with_links, r"`Megatron-LM PR #411 <[^>]*>`__"),
        (numerics, r"   :?from attnverify.bounds|\.\. math::|\.\. run::"),
        (implementations_and_their_speed, r"Speed, .*"),
        (versions, r"Specified since .*"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_a_page_lacks_is_noticed(part: Callable[[str, Operation], bool], pattern: str) -> None:
    page, operation = page_of("dropout"), CATALOGUE["dropout"]
    without = re.sub(pattern, "", page)
    assert without != page and part(page, operation) and not part(without, operation)
