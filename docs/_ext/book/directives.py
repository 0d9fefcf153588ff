"""
Directives that execute: ``run`` shows a session whose output the build computes, ``picture`` draws
with the session's variables.
"""

import ast
import inspect
import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from attnverify import spec
from book import sight, status

SESSION = "book_session"
known: dict[str, Any] = {}
"""The names of the page whose picture is drawn now; what they stand for is not computed again."""


class Run(SphinxDirective):
    """
    Execute the content statement by statement and show it as an interactive session.

    One session a page: later blocks know the names of earlier ones. With ``:raises: ValueError``
    the last statement must raise it.
    """

    has_content = True
    option_spec = {"raises": directives.unchanged}  # noqa: RUF012 - as docutils has it

    def run(self) -> list[nodes.Node]:
        names = self.env.temp_data.setdefault(SESSION, fresh())
        source = "\n".join(self.content)
        try:
            text = "\n".join(played(source, names, self.options.get("raises", "")))
        except Exception as error:
            raise self.error(f"run: {type(error).__name__}: {error}") from error
        block = nodes.literal_block(text, text, language="pycon")
        return [block]


def fresh() -> dict[str, Any]:
    """What a session knows at its start: NumPy and the specification."""
    return {"np": np, "spec": spec, **{name: getattr(spec, name) for name in spec.__all__}}


def played(source: str, names: dict[str, Any], raises: str = "") -> Iterator[str]:
    """The lines of the session: each statement after its prompt, then what it printed or is."""
    with np.printoptions(precision=4, suppress=True, linewidth=100):
        for number, (statement, text) in enumerate(found := list(statements(source))):
            yield from (
                ("... " if line_number else ">>> ") + line for line_number, line in enumerate(text)
            )
            if raises and number == len(found) - 1:
                yield from refused(statement, names, raises)
            else:
                yield from shown(statement, names)


def statements(source: str) -> Iterator[tuple[ast.stmt, list[str]]]:
    """Each statement with its lines."""
    lines = source.splitlines()
    for statement in ast.parse(source).body:
        yield statement, lines[statement.lineno - 1 : statement.end_lineno]


def shown(statement: ast.stmt, names: dict[str, Any]) -> list[str]:
    """What the statement prints, and what it is, where it is an expression."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        if isinstance(statement, ast.Expr):
            value = eval(compile(ast.Expression(statement.value), "<page>", "eval"), names)
            if value is not None:
                print(repr(value))
        else:
            exec(compile(ast.Module([statement], []), "<page>", "exec"), names)
    return printed.getvalue().splitlines()


def refused(statement: ast.stmt, names: dict[str, Any], raises: str) -> list[str]:
    try:
        shown(statement, names)
    except Exception as error:
        if type(error).__name__ == raises:
            return ["Traceback (most recent call last):", f"{raises}: {error}"]
        raise
    raise AssertionError(f"wanted {raises}, nothing was raised")


class Picture(SphinxDirective):
    """
    A call of ``docs/pictures``, drawn by matplotlib's plot directive with the variables of the
    page's session.

    The argument names the function, ``shifts.moved``; the content are its arguments; ``:alt:`` says
    what is to be seen. It is drawn twice, for a light and for a dark page; with ``:narrow:``, other
    arguments, twice more for a page that is too narrow for it.
    """

    has_content = True
    required_arguments = 1
    option_spec = {  # noqa: RUF012
        "alt": directives.unchanged_required,
        "narrow": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        module, _, function = self.arguments[0].rpartition(".")
        if "alt" not in self.options:
            raise self.error("picture: wanted :alt:, a sentence for who cannot see it")
        arguments = {"": " ".join(self.content)}
        if "narrow" in self.options:
            arguments = {"wide": arguments[""], "narrow": self.options["narrow"]}
        drawn = [
            self.draw(f"{module}.{function}({given})", width) for width, given in arguments.items()
        ]
        return [*drawn, *source_of(module, function)]

    def draw(self, call: str, width: str) -> nodes.Node:
        """Draw one call in both themes, for any page or for those of one width."""
        known.clear()
        known.update(self.env.temp_data.get(SESSION) or fresh())
        lines: list[str] = []
        for theme in ("light", "dark"):
            code = code_of(call, theme)
            lines += [
                f".. container:: only-{theme}",
                "",
                "   .. plot::",
                f"      :alt: {' '.join(self.options['alt'].split())}",
                "",
            ]
            lines += [f"      {line}".rstrip() for line in code.splitlines()] + [""]
        container = nodes.container(classes=["picture", *filter(None, [width])])
        self.state.nested_parse(
            StringList(lines, self.get_source_info()[0]), self.content_offset, container
        )
        return container


def source_of(module: str, function: str) -> list[nodes.Node]:
    """The function that draws, folded away under the picture."""
    drawn_by = getattr(import_module(f"pictures.{module}"), function)
    text = inspect.getsource(drawn_by).rstrip()
    summary = f"The code of this picture, docs/pictures/{module}.py"
    return [
        nodes.raw("", f'<details class="drawn-by"><summary>{summary}</summary>', format="html"),
        nodes.literal_block(text, text, language="python"),
        nodes.raw("", "</details>", format="html"),
    ]


def code_of(call: str, theme: str) -> str:
    """What matplotlib's directive executes, in this process."""
    return f"""from book.directives import known
globals().update(known)
from pictures import style, {call.partition(".")[0]}
with style.drawn({theme!r}):
    {call}"""


class Measured(SphinxDirective):
    """A sentence on what was raced, on which devices and when, or that nothing was yet."""

    def run(self) -> list[nodes.Node]:
        devices = dict.fromkeys(
            f"{status.device(path)} ({path.parts[-2]})" for path in status.newest()
        )
        raced = "; ".join(devices)
        text = f"Raced on {raced}." if raced else f"Speed: {status.NOT_MEASURED}."
        return [nodes.paragraph(text, f"{text} The pages of the operations say what came of it.")]


class EveryOperation(SphinxDirective):
    """A table: what the implementations of every operation have passed."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(status.every_operation()))


class NoticedSince(SphinxDirective):
    """A table: which faults were noticed before some cases were drawn for their sake, and since."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(status.noticed_since()))


class Noticed(SphinxDirective):
    """A table of what is noticed, by the name of its function in :mod:`book.sight`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(getattr(sight, self.arguments[0])()))
