"""
A toy operation and all that adding it takes: what is written into which file of a copy of the tree.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from attnverify import COLUMNS, ROOT
from tests.support.run_attnverify import searched

NAME = "inner_product_score"

SPEC = '''

def inner_product_score(
    query: Float[ndarray, "... N D"], key: Float[ndarray, "... M D"]
) -> Float[ndarray, "... N M"]:
    r"""
    The inner product of a query and a key, as it is.

    .. math:: s_{ij} = \\sum_d q_{id}\\, k_{jd}

    >>> inner_product_score(np.array([[3.0, 4.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[3., 4.]])

    Source: Luong et al. 2015, section 3.1.
    """
    check(ARRAYS, SCALED_SCORE, query, key)
    return np.einsum("...nd,...md->...nm", query, key)
'''

TRAITS = f"""    "{NAME}": Traits(
        _SCORE_FAMILIES,
        skipped=_PART
        | _ONE_WAY
        | {{
            "systematic errors": "it has no factor of its own",
            "benchmarks": "it is timed within its attention",
        }},
    ),
"""

BOUND = '''

def inner_product_score(query: ndarray, key: ndarray, *, precision: Precisions) -> ndarray:
    """The error of q.k, stored."""
    at = products(query, key)
    return score_bound(at.raw, at.lost, lambda P: product_error(at, P), precision)
'''

NUMPY = '''

@rounds_once
def inner_product_score(
    query: Float[ndarray, "... N D"], key: Float[ndarray, "... M D"]
) -> Float[ndarray, "... N M"]:
    """See :func:`spec.scores.inner_product_score`."""
    check(ARRAYS, SCALED_SCORE, query, key)
    return query @ key.mT
'''

TORCH = '''

def inner_product_score(
    query: Float[Tensor, "... N D"], key: Float[Tensor, "... M D"]
) -> Float[Tensor, "... N M"]:
    """As :func:`spec.scores.inner_product_score`."""
    check(TENSORS, SCALED_SCORE, query, key)
    q, k = wide(*apart(query, key))
    return (q @ k.mT).to(query.dtype)
'''

CUPY = '''

@ieee
def inner_product_score(
    query: Float[Array, "... N D"], key: Float[Array, "... M D"]
) -> Float[Array, "... N M"]:
    """See :func:`spec.scores.inner_product_score`."""
    check(ARRAYS, SCALED_SCORE, query, key)
    dtype, (query, key) = query.dtype, wide(query, key)
    return narrow(query @ key.mT, dtype)
'''

VARIANT = f"""    "{NAME}": lambda at, query, key: at.out(
        at.score(at.loaded_product(at.read(query), at.read(key).swapaxes(-1, -2), None))
    ),
"""

_EXPORTED = ('__all__ = ["additive_score", ', f'__all__ = ["additive_score", "{NAME}", ')
_LISTED = ('    "additive_score_grad",\n', f'    "additive_score_grad",\n    "{NAME}",\n')
_GATHERED = (
    ("    additive_score_grad,\n", f"    additive_score_grad,\n    {NAME},\n"),
    ('    "dropout",\n', f'    "{NAME}",\n    "dropout",\n'),
)

Edit = tuple[str, str]
"""A passage of a file and what stands there instead; the end of the file where it is empty."""


def _first(name: str, line: str) -> Edit:
    """A line before the entry of that name."""
    return f'    "{name}": ', f'{line}    "{name}": '


EDITS: Mapping[str, tuple[Edit, ...]] = {
    "spec/scores.py": (_LISTED, ("", SPEC)),
    "spec/__init__.py": _GATHERED,
    "attnverify/catalogue/traits.py": (_first("causal_mask", TRAITS),),
    "attnverify/bounds/scores.py": (("", BOUND),),
    "numpy_ref/scores.py": (_LISTED, ("", NUMPY)),
    "numpy_ref/__init__.py": _GATHERED,
    "torch_impl/scores.py": (_EXPORTED, ("", TORCH)),
    "cupy_impl/scores.py": (_LISTED, ("", CUPY)),
    "tests/rounding_variants/operations.py": (_first("additive_score", VARIANT),),
    "tests/rounding_variants/grammar.py": (_first("additive_score", f'    "{NAME}": SUMS,\n'),),
}


def copy_tree(folder: Path) -> Path:
    """A copy of what is judged with and of the tests, as it stands here, compiled as it is."""
    for name in ("attnverify", *COLUMNS, "benchmarks", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, folder)
    return folder


def add_operation(tree: Path, without: str = "") -> None:
    """Write the toy operation into a copy of the tree, into all files but one."""
    for name in EDITS.keys() - {without}:
        text = (tree / name).read_text()
        for passage, instead in EDITS[name]:
            assert not passage or text.count(passage) == 1, (name, passage)
            text = text.replace(passage, instead) if passage else text + instead
        (tree / name).write_text(text)


def changed_files(tree: Path) -> list[str]:
    """The files of a copy that are not those of this tree."""
    return [
        name
        for path in sorted(tree.rglob("*.*"))
        if path.is_file() and path.suffix != ".pyc"
        for name in [path.relative_to(tree).as_posix()]
        if not (ROOT / name).is_file() or (ROOT / name).read_bytes() != path.read_bytes()
    ]


def run_in(tree: Path, *arguments: str) -> tuple[int, str]:
    """``python -m ...`` in a copy of the tree, which imports nothing of this one."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": searched(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
