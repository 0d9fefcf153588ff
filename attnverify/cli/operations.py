"""The commands about operations: ``list`` says what they are, ``new`` begins a file for one."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnverify.cli.parameters import FILE, Command, Value
from attnverify.options import OPTIONS, exported_names, parse_listed
from attnverify.report.terminal_colours import print_folded

if TYPE_CHECKING:
    from attnverify.catalogue.operation import Operation

OPERATION = Value(OPTIONS["op"])
LISTED = Value(replace(OPTIONS["op"], parse=parse_listed, words=exported_names))


def print_operations(operation: str | None) -> int:
    """
    Every operation in a line and what it is in another, or those that have a word in their names;
    all that there is to know of one.
    """
    from attnverify.catalogue.operation import CATALOGUE

    if operation in CATALOGUE:
        print_folded(describe(CATALOGUE[operation]))
        return 0
    print_folded(
        line
        for name, one in CATALOGUE.items()
        if not operation or (operation in name and not one.is_gradient)
        for line in (
            f"{name}({', '.join(one.arguments)})",
            f"  {sentence(one.specification).partition('. ')[0].rstrip('.:')}.",
        )
    )
    return 0


def describe(operation: "Operation") -> Iterator[str]:
    """
    Describe an operation: its arguments with their axes and defaults, a sentence, its conventions,
    what it is made of and where it is written.
    """
    from attnverify.report.causes.prerequisites import called_operations

    specification = operation.specification
    yield f"{specification.__name__} (chapter {specification.__module__.rpartition('.')[2]})"
    yield f"  {sentence(specification)}"
    yield ""
    yield from (f"  {line}" for line in shapes(specification))
    yield ""
    yield f"  {'; '.join(f'{letter} {words}' for letter, words in operation.letters.items())}"
    if found := clauses(specification):
        yield ""
        yield from (f"  {line}" for line in found)
    yield ""
    if parts := sorted({*called_operations(specification)}):
        yield f"made of: {', '.join(parts)}"
    own = inspect.unwrap(specification)
    yield f"in NumPy: {inspect.getsourcefile(own)}, line {inspect.getsourcelines(own)[1]}"
    begin = specification.__name__.removesuffix("_grad")
    yield f"next, for a file to begin with: attnverify new {begin}"


def shapes(specification: Any) -> list[str]:
    """
    One line for each argument, with its axes, what True means in it and its default, and one for
    the output.
    """
    from attnverify.backends.calls.arguments import SENSE
    from attnverify.catalogue.annotations import single_parameters, without_domain

    returned = inspect.signature(specification).return_annotation
    rows = {
        parameter.name: axes(without_domain(parameter.annotation))
        + SENSE.get(parameter.name, "")
        + ("" if parameter.default is parameter.empty else f", by default {parameter.default}")
        for parameter in single_parameters(specification)
    } | {"-> output": axes(returned)}
    width = max(map(len, rows)) + 2
    return [f"{name:<{width}}{words}" for name, words in rows.items()]


def sentence(specification: Any) -> str:
    """Return the first sentence of a docstring, in one line."""
    return plain(" ".join((inspect.getdoc(specification) or "").partition("\n\n")[0].split()))


def clauses(specification: Any) -> list[str]:
    """Return the numbered clauses of a docstring: what to look at twice."""
    found = re.findall(
        r"^(?:\d+\. .*(?:\n {2,}\S.*)*)", inspect.getdoc(specification) or "", re.MULTILINE
    )
    return [line for clause in found for line in plain(clause).splitlines()]


def plain(text: str) -> str:
    """Write what a docstring has for the book as a terminal can show it: names, and formulas."""
    text = re.sub(r":func:`(?:[\w.]*\.)?(\w+)`", r"\1", text.replace("``", ""))
    return re.sub(r":math:`([^`]*)`", lambda found: plain_formula(found[1]), text)


def plain_formula(latex: str) -> str:
    """Write ``x[i,j-i]`` for ``x_{i,j-i}``; what is left of LaTeX loses its backslashes."""
    for pattern, words in FORMULAS.items():
        latex = re.sub(pattern, words, latex)
    return latex.replace("\\", "")


FORMULAS = {
    r"\\text\{(.*?)\}": r"\1",
    r"_\{([^}]*)\}": r"[\1]",
    r"\^\{([^}]*)\}": r"^(\1)",
    r"\^\\top": ".T",
    r"\\big": "",
    r"\\,": " ",
}


ARRAY = re.compile(r"(?:jaxtyping\.)?(Float|Bool|Int8|Int)\[(?:numpy\.)?ndarray, '([^']*)'\]")


def axes(annotation: Any) -> str:
    """``float [B H N D]`` of ``Float[ndarray, "B H N D"]``; everything else nearly as it stands."""
    text = inspect.formatannotation(annotation)
    text = ARRAY.sub(lambda found: f"{found[1].lower()} [{found[2]}]", text)
    return re.sub(r"\b(?:collections\.abc|typing|numpy)\.", "", text).replace(" | ", " or ")


list_operations = Command(
    "list",
    callback=print_operations,
    params=[click.Argument(["operation"], type=LISTED, required=False, metavar="[OPERATION]")],
    help="List the operations of the catalogue, or those with a word in their names; of one, its "
    "shapes, defaults and conventions.",
    short_help="List the operations of the catalogue, or say what one is.",
    example="attnverify list alibi_attention",
)


def print_specification(specification: str | None) -> int:
    """What was understood of somebody's own specification, or what may stand in one."""
    from attnverify.specified import register_file
    from attnverify.specified.described import describe as describe_specified
    from attnverify.specified.described import describe_functions
    from attnverify.specified.registering import find_specified

    if specification is None:
        print_folded(describe_functions())
        return 0
    try:
        names = register_file(specification)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for name in names:
        print_folded(describe_specified(find_specified(name)))
    return 0


spec = Command(
    "spec",
    callback=print_specification,
    params=[
        click.Argument(["specification"], type=FILE, required=False, metavar="[FILE[:FUNCTION]]")
    ],
    help="Say what is understood of your own specification: its axes, what is drawn for each "
    "argument, how small an error is noticed, and which lines its bound comes from; without a file "
    "which functions of NumPy are understood.",
    short_help="Say what is understood of your own specification.",
    example="attnverify spec my_spec.py",
    status="Exit status: 0 done, 4 it cannot be read, with the line",
)

SPECIFICATION = '''"""
What the kernel computes, in NumPy.

    attnverify spec {file}
    attnverify run my_kernel.py --spec {file}
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray


def rms_norm(x: Float[ndarray, "B N F"], gain: Float[ndarray, "F"], eps: float = 1e-6):
    """Divide by the root mean square, and multiply with a gain. A capital letter is a size."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain
'''

TEMPLATE = '''"""
{sentence}

    attnverify run {file}
"""

import {library}

PRECISION = "eager"  # what its arithmetic claims: eager, fused or wide


def {name}({parameters}):
    """
{arguments}
    """
    raise NotImplementedError("{name} is not written yet")
'''


LIBRARIES = ("torch", "cupy", "jax", "numpy")


def installed_library() -> str:
    """Return the first library of arrays that is installed; NumPy always is."""
    return next(name for name in LIBRARIES if find_spec(name) is not None)


def write_template(
    operation: str | None, arrays: str | None, output: str | None, spec: bool
) -> int:
    """A file with one function to fill in; a file that is there is not touched."""
    from attnverify.catalogue.operation import CATALOGUE

    if spec:
        return write_specification(Path(output or "my_spec.py"))
    if operation is None:
        raise click.UsageError("an operation is wanted, or --spec: attnverify list names them")
    library = arrays or installed_library()
    path = Path(output or f"{operation}.py")
    write_anew(path, template(CATALOGUE[operation].specification, library, str(path)))
    print(f"{path}: write the function for arrays of {library}, then\n  attnverify run {path}")
    return 0


def write_specification(path: Path) -> int:
    """A specification to begin with."""
    write_anew(path, SPECIFICATION.format(file=path))
    print(f"{path}: write what your kernel computes, then\n  attnverify spec {path}")
    return 0


def write_anew(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None


def template(specification: Any, library: str, file: str) -> str:
    from attnverify.catalogue.annotations import single_parameters

    parameters = ", ".join(
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in single_parameters(specification)
    )
    return TEMPLATE.format(
        sentence=sentence(specification),
        file=file,
        library=library,
        name=specification.__name__,
        parameters=parameters,
        arguments="\n".join(f"    {line}" for line in shapes(specification)),
    )


new = Command(
    "new",
    callback=write_template,
    params=[
        click.Argument(["operation"], type=OPERATION, required=False, metavar="[OPERATION]"),
        click.Option(["--spec"], is_flag=True, help="a specification of your own, my_spec.py"),
        click.Option(
            ["--arrays"],
            type=click.Choice(LIBRARIES),
            default=None,
            help="the library whose arrays it takes (default: the first of them that is installed)",
        ),
        click.Option(
            ["-o", "--output"],
            type=FILE,
            metavar="FILE",
            help="where it goes (default: OPERATION.py)",
        ),
    ],
    help="Write a file to begin with: one operation, to be filled in.",
    example="attnverify new alibi_attention",
    status="Exit status: 0 done, 2 the file cannot be written, 4 an option is wrong",
)
