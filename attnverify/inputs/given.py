"""
Inputs that somebody brings: the arrays of a file as a recipe, which is judged, told and replayed
like a drawn one.

A file of NumPy's (``.npz``) or PyTorch's (``.pt``, a dictionary) holds the arguments by their
names; those of a mapping are joined by a point, ``parameters.q_proj.weight``.
"""

import hashlib
import io
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy import ndarray

from attnverify.backends.calls.arguments import BIASES, SYNONYMS
from attnverify.backends.calls.headless import has_heads
from attnverify.catalogue.annotations import Domain
from attnverify.catalogue.operation import CATALOGUE, MASKS, Operation
from attnverify.catalogue.rows import sampled_rows, single_row
from attnverify.catalogue.traits import DTYPES
from attnverify.inputs.recipe import Inputs, Recipe, format_mapping

GIVEN = "given"
"""The family of numbers that a file holds."""

D_OUTPUT = "d_output"
"""The argument with which a file speaks of gradients too."""

LARGEST = 2**26
"""
Most pairs of a query and a key, over batch and heads: the specification holds a float64 each. An
attention on more is judged in sampled rows.
"""

MOST_ROWS = 32
"""So many rows of a large call are judged at most."""

Arrays = dict[str, Any]


def read_arrays(path: str) -> Arrays:
    """
    Read the arrays of a file by name, again where it has been written since. Raises ValueError
    where it holds none that can be read.
    """
    sha = ""
    with suppress(OSError):  # told by who opens it
        sha = sha_of(path)
    return _read_once(path, sha)


@lru_cache(maxsize=8)
def _read_once(path: str, sha: str) -> Arrays:
    is_torch = Path(path).suffix in (".pt", ".pth")
    try:
        if is_torch:
            return {name: _of_torch(x) for name, x in _load_torch(path).items()}
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: _of_numpy(file[name]) for name in file.files}
    except Exception as error:  # whatever a damaged file makes of its reader
        raise ValueError(
            "inputs: wanted a file of NumPy (.npz) or PyTorch (.pt) that holds arrays by name, got "
            f"{path} ({_describe_unreadable(path, is_torch, error)})"
        ) from None


def _describe_unreadable(path: str, is_torch: bool, error: Exception) -> str:
    """Say in our words why a file holds no arrays by name; a reader's advice is not for it."""
    if words := next((told for kind, told in UNREADABLE.items() if isinstance(error, kind)), ""):
        return words
    begin, said = Path(path).read_bytes()[:2], str(error)
    is_object = "Object arrays" in said or "weights_only" in said
    if is_object or (begin[:1] == b"\x80" and not is_torch):  # as a pickle begins
        return "it holds Python objects, which are not loaded: save arrays or tensors alone"
    return "it is cut off, or holds something else" if begin == b"PK" else "it is no such file"


UNREADABLE: dict[type[Exception], str] = {
    ImportError: "PyTorch, which reads it, is not installed",
    FileNotFoundError: "there is no such file",
    **dict.fromkeys((PermissionError, IsADirectoryError), "it cannot be opened"),
    **dict.fromkeys((AttributeError, TypeError), "it holds one array, or a list, without names"),
}
"""What it means that a reader raises an error of a kind."""


def _load_torch(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = import_module("torch").load(
        path, map_location="cpu", weights_only=True
    )
    return loaded


def _of_torch(x: Any) -> Any:
    if not hasattr(x, "detach"):
        return x
    x = x.detach().cpu()
    name = str(x.dtype).removeprefix("torch.")
    return x.float().numpy().astype(ml_dtypes.bfloat16) if name == "bfloat16" else x.numpy()


def _of_numpy(x: ndarray) -> ndarray:
    """Return the array; numbers of bfloat16 lose their name in NumPy's files."""
    return x.view(ml_dtypes.bfloat16) if x.dtype == np.dtype("V2") else x


def dtype_of_file(path: str) -> str:
    """Return the dtype of the numbers in a file; that of most of them, the wider of two."""
    names = list(_dtypes_by_name(read_arrays(path)).values())
    return max(DTYPES, key=names.count) if names else "float32"


def _dtypes_by_name(arrays: Arrays) -> dict[str, str]:
    floats = {name: x for name, x in arrays.items() if getattr(x, "dtype", None) in FLOATS}
    return {name: x.dtype.name for name, x in floats.items()}


def notes_of_file(path: str) -> list[str]:
    """Say what somebody may not know of the numbers that he brings: dtypes, NaN, infinity."""
    arrays = read_arrays(path)
    dtypes, judged = _dtypes_by_name(arrays), dtype_of_file(path)
    notes = [
        f"{name} is {dtype}, and cast: {judged} is judged where --dtype names no other"
        for name, dtype in dtypes.items()
        if dtype != judged
    ]
    for words, is_met in (("NaN", np.isnan), ("infinity", np.isinf)):
        for name in dtypes:
            count = int(is_met(arrays[name].astype(np.float64)).sum())
            if count and (words == "NaN" or name not in MASKS):  # of a mask to add it hides a key
                notes.append(f"{name} holds {words}: {count} of {arrays[name].size} numbers")
    return notes


FLOATS = [np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in DTYPES]


def recipe_of_file(operation: Operation, path: str, *, as_it_is: bool = False) -> Recipe:
    """
    Return the recipe of a file's arrays as arguments of an operation, with ordinary numbers in the
    slots that no row sees unless they are wanted ``as_it_is``. Raises ValueError where they are no
    arguments, and where there are too many pairs even for sampled rows.
    """
    sizes = sizes_of(operation, arguments_of(operation, read_arrays(path)))
    pairs = count_pairs(sizes)
    rows = operation.is_attention and pairs // sizes["N"] <= LARGEST
    if pairs > LARGEST and not rows:
        raise ValueError(
            f"inputs: wanted at most {LARGEST} pairs of a query and a key (B H N M; of an "
            f"attention, which is judged by rows, B H M), got {pairs}"
        )
    values = {"family": GIVEN, "seed": 0, "file": str(Path(path).absolute()), "sha": sha_of(path)}
    return Recipe(operation.name, sizes, values, poison="nan" if as_it_is else None)


def describe_file(operation: Operation, path: str) -> str:
    """Describe the sizes in a file, and how much of such a call is judged."""
    recipe = recipe_of_file(operation, path)
    rows = recipes_of_rows(recipe)
    part = f"; too many pairs to be held at once: {len(rows)} sampled rows are judged"
    of_gradients = (
        ", and of the gradients the one by the query"
        if speaks_of_gradients(read_arrays(path))
        else ""
    )
    return format_mapping(dict(sorted(recipe.sizes.items()))) + (
        part + of_gradients if rows else ""
    )


def count_pairs(sizes: Mapping[str, int]) -> int:
    """Count the pairs of a query and a key, over batch and heads."""
    return prod(sizes.get(letter, 1) for letter in "BHNM")


def recipes_of_rows(recipe: Recipe) -> list[Recipe]:
    """
    Return sampled rows of a call that is too large for the specification, each as a call of its
    own; none of one that is not.
    """
    pairs, N = count_pairs(recipe.sizes), recipe.sizes.get("N", 1)
    if pairs <= LARGEST:
        return []
    drawn = np.random.default_rng(0).permutation(N)[: min(MOST_ROWS, LARGEST * N // pairs)]
    rows = sorted({*sampled_rows(N), *drawn.tolist()})
    operation = CATALOGUE[recipe.operation]
    whole = given_inputs(recipe, operation)
    return [
        replace(
            recipe,
            sizes=sizes_of(operation, single_row(operation, whole, row)),
            values=recipe.values | {"row": row},
        )
        for row in rows
    ]


def sha_of(path: str) -> str:
    """Twelve hexadecimal digits of a file's content."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


def given_inputs(recipe: Recipe, operation: Operation) -> Inputs:
    """Return all arguments in a recipe's file. Raises ValueError where it has changed."""
    path, sha = recipe.values["file"], recipe.values["sha"]
    if sha_of(path) != sha:
        raise ValueError(f"inputs: {path} is no longer the file that was judged ({sha})")
    return arguments_of(operation, _read_once(path, sha))


def arguments_of(operation: Operation, arrays: Mapping[str, Any]) -> Inputs:
    """Arrays by name as arguments, floats widened. Raises ValueError for a wrong name."""
    tree: Inputs = {}
    for name, value in arrays.items():
        given, _, rest = name.partition(".")
        first = argument_of(given, operation)
        if first == D_OUTPUT and not operation.is_gradient:
            continue
        if first not in operation.arguments:
            raise ValueError(
                f"inputs: wanted {', '.join(operation.arguments)} of {operation.name}, got {name}"
                + _takes_all(arrays)
            )
        if first in tree and not rest:
            raise ValueError(f"inputs: {first}: wanted it once, got {given} too")
        if rest:
            tree.setdefault(first, {})[rest] = _widen(value)
        else:
            tree[first] = _widen(value)
    missing = [
        name for name in operation.arguments if operation.requires(name) and name not in tree
    ]
    for name in missing:
        if not operation.allows_none(name):
            raise ValueError(f"inputs: {operation.name} wants {name}, which is not there")
        tree[name] = None
    found = {name: tree[name] for name in operation.arguments if name in tree}
    found = _with_heads(operation, found)
    pairs = {name: domain for name, domain in operation.domains.items() if name in found}
    return found | {name: _as_pair(found[name], domain) for name, domain in pairs.items()}


def _takes_all(names: Iterable[str]) -> str:
    """Name an operation of which all of these are arguments, where there is one."""
    first = [name.partition(".")[0] for name in names if not speaks_of_gradients([name])]
    for name, other in CATALOGUE.items():
        if not other.is_gradient and all(argument_of(x, other) in other.arguments for x in first):
            return f"; all in the file are arguments of --op {name}"
    return ""


def _with_heads(operation: Operation, inputs: Inputs) -> Inputs:
    """
    Return arrays without heads [B N D] and single matrices [N D], as kernels with such a LAYOUT
    take them, as arrays of one head, of one entry; a mask [B N M] that comes with them too.
    """
    ndim = {name: getattr(x, "ndim", 0) for name, x in inputs.items()}
    headed = [name for name, axes in operation.axes.items() if has_heads(axes, width=True)]
    if {ndim.get(name) for name in headed} not in ({2}, {3}):
        return inputs
    masks = [name for name in (operation.mask, "keep") if ndim.get(name or "") == 3]
    return {
        name: x.reshape(-1, 1, *x.shape[-2:]) if name in (*headed, *masks) else x
        for name, x in inputs.items()
    }


def _as_pair(value: Any, domain: Domain) -> Any:
    """
    Return two counts, or two arrays, as the pair that an option wants; anything else as it came. A
    count of -1 is no limit, as elsewhere in the field: a file has no None.
    """
    if isinstance(value, Mapping) and len(domain.axes) == len(value):
        return tuple(value.values())
    of_counts = any(isinstance(choice, tuple) for choice in domain.choices)
    if (
        of_counts
        and isinstance(value, ndarray)
        and value.shape == (2,)
        and value.dtype.kind in "iu"
    ):
        return tuple(None if count == -1 else count for count in value.tolist())
    return value


def argument_of(name: str, operation: Operation) -> str:
    """Return the argument that an array's name means, as in a signature; else the name itself."""
    if name in operation.arguments:
        return name
    known = dict(SYNONYMS)
    if operation.mask in known:
        known[operation.mask] += BIASES
    wanted = (*operation.arguments, D_OUTPUT)
    return next((own for own in wanted if name in known.get(own, ())), name)


def speaks_of_gradients(arrays: Iterable[str]) -> bool:
    """Tell whether arrays of these names hold what arrives at the output."""
    return any(name in (D_OUTPUT, *SYNONYMS[D_OUTPUT]) for name in arrays)


def _widen(value: Any) -> Any:
    """Return a float array in float64; what has no axes as a number, a word or None."""
    if not isinstance(value, ndarray):
        return value
    if value.ndim == 0:
        return value.item()
    return value.astype(np.float64) if value.dtype in FLOATS else value


def sizes_of(operation: Operation, inputs: Inputs) -> dict[str, int]:
    """
    Return the sizes that the arrays have, by their letters. Raises ValueError where two arrays
    disagree.
    """
    sizes: dict[str, int] = {}
    for name, axes in (operation.axes | operation.integer_axes).items():
        array = inputs.get(name)
        letters = axes.split()
        if not isinstance(array, ndarray):
            continue
        wanted = letters[1:] if letters[0] == "..." else letters
        if array.ndim < len(wanted) or (letters[0] != "..." and array.ndim != len(wanted)):
            raise ValueError(f"inputs: {name}: wanted [{axes}], got shape {array.shape}")
        for letter, size in zip(wanted[::-1], array.shape[::-1], strict=False):
            if len(letter) == 1 and sizes.setdefault(letter, size) != size:
                shared = letter == "H" and name == "key" and sizes["H"] % max(size, 1) == 0
                hint = FEWER_HEADS if shared else ""
                wanted_size = f"{letter} = {sizes[letter]}"
                raise ValueError(f"inputs: {name}: wanted {wanted_size}, got {size}{hint}")
    return sizes | ({"B": len(inputs["query_starts"]) - 1} if operation.is_packed else {})


FEWER_HEADS = "; keys of fewer heads than queries are those of --op grouped_attention"


def save_inputs(inputs: Mapping[str, Any], folder: str) -> str:
    """Write arrays by name to a file of the folder, named for what it holds; its path."""
    flat = {
        f"{name}.{key}" if key else name: to_array(value)
        for name, tree in inputs.items()
        if tree is not None
        for key, value in _parts_of(tree)
    }
    content = io.BytesIO()
    np.savez(content, **flat)
    path = Path(folder) / f"inputs-{hashlib.sha256(content.getvalue()).hexdigest()[:12]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.getvalue())
    return str(path.absolute())


def _parts_of(tree: Any) -> Iterable[tuple[str, Any]]:
    """Yield what of an argument is an array of its own in a file, with the rest of its name."""
    if isinstance(tree, Mapping):
        return tree.items()
    if isinstance(tree, (tuple, list)) and all(x is None or isinstance(x, int) for x in tree):
        return [("", np.array([-1 if count is None else count for count in tree]))]
    return ((str(at), x) for at, x in enumerate(tree)) if isinstance(tree, tuple) else [("", tree)]


def to_array(value: Any) -> Any:
    """Return a tensor, or an array of any library, as one of NumPy."""
    return np.asarray(_of_torch(value))
