"""Relations that need no oracle: each is kept by what is right, and broken by a twin."""

from pathlib import Path

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks.metamorphic import RELATIONS, relation_checks, relations_for
from attnverify.judge.errors import Disagreement
from tests.support.sample_backends import implementation

ALIBI, SDPA = "alibi_attention", "scaled_dot_product_attention"
NAMES = [
    (operation, name)
    for operation in CATALOGUE
    for name, _ in relation_checks(operation, "quick", 0)
]


def held(operation: str, name: str, function: Implementation) -> None:
    dict(relation_checks(operation, "quick", 0))[f"relation: {name}"](function, "float32")


def written(folder: Path, text: str) -> Implementation:
    path = folder / "related.py"
    path.write_text(
        "import numpy as np\nfrom attnverify import numpy_ref as right\n\n"
        "ARRAYS, PRECISION = 'numpy', 'wide'\n\n\n" + text
    )
    return load(str(path)).implementations[0]


@pytest.mark.parametrize(("operation", "name"), NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_right_function_keeps_every_relation(operation: str, name: str, dtype: str) -> None:
    right = next(i for i in load("numpy_ref").implementations if i.name == operation)
    dict(relation_checks(operation, "quick", 0))[name](right, dtype)


def test_every_relation_holds_for_some_operation() -> None:
    told = {name.removeprefix("relation: ") for _, name in NAMES}
    extra = {
        "a hidden slot changes no bit",
        "segments with memory are one long window",
        "a constant per row",
    }
    assert told == {*RELATIONS} | extra


@pytest.mark.parametrize(
    ("operation", "broken"),
    {
        ALIBI: {"permute the heads", "permute the keys"},
        "additive_attention": {"permute the heads"},
        "transformer_xl_attention": {"permute the keys"},
        "learned_relative_attention": {"permute the keys"},
        SDPA: set(),
    }.items(),
)
def test_a_relation_that_does_not_hold_is_asked_of_no_one(operation: str, broken: set[str]) -> None:
    assert {*RELATIONS} - {*relations_for(CATALOGUE[operation])} == broken


@pytest.mark.parametrize("name", ["permute the batch", "a batch element alone"])
def test_a_mixed_batch_is_found(name: str) -> None:
    with pytest.raises(Disagreement, match="differ"):
        held(ALIBI, name, implementation("alibi_attention_mixes_the_batch"))


BROKEN = {
    "permute the heads": "q[:, ::-1], k, v, mask",
    "permute the keys": "q, k, v + np.arange(k.shape[2])[:, None].astype(v.dtype), mask",
    "extra hidden keys": "q, k, v * v.dtype.type(1 / k.shape[2]), mask",
    "a hidden slot changes no bit": "q, k, v + v.mean(axis=2, keepdims=True) * v.dtype.type(1e-3), "
    "mask",
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_relation_finds_its_fault(name: str, tmp_path: Path) -> None:
    body = (
        f"def {SDPA}(q, k, v, mask=None, keep=None, p=0.0):\n    return "
        f"right.{SDPA}({BROKEN[name]})\n"
    )
    with pytest.raises(Disagreement, match="differ"):
        held(SDPA, name, written(tmp_path, body))


def test_a_softmax_that_knows_its_constant_is_found(tmp_path: Path) -> None:
    body = (
        "def softmax(score, mask=None):\n    return right.softmax(score * (1 + "
        "abs(score).max() / 64).astype(score.dtype), mask)\n"
    )
    with pytest.raises(Disagreement, match="differ"):
        held("softmax", "a constant per row", written(tmp_path, body))


def test_a_memory_that_is_ignored_is_found(tmp_path: Path) -> None:
    body = """
def transformer_xl(x, parameters, num_heads, mems, mem_len, eps=1e-5):
    hidden, _ = right.transformer_xl(x, parameters, num_heads, None, mem_len, eps)
    return hidden, right.transformer_xl(x, parameters, num_heads, mems, mem_len, eps)[1]
"""
    with pytest.raises(Disagreement, match="differ"):
        held("transformer_xl", "segments with memory are one long window", written(tmp_path, body))
