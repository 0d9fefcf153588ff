"""
Public code that a cause names computes what is said of it: it is replayed on the records of
examples/, where its package is installed.
"""

import warnings
from pathlib import Path

import pytest

from attnverify import ROOT
from attnverify.backends.loader import load
from attnverify.diagnosis.public_conventions import PUBLIC
from attnverify.failures.record import read_record
from attnverify.failures.replay import replay
from attnverify.judge.errors import Disagreement
from tests.attnverify.diagnosis.test_reasons import SDPA, findings

EXAMPLES = Path(ROOT) / "examples"
XLNET, ALIBI = "transformer_xl_attention", "alibi_attention"

SHOWN: dict[str, tuple[str, str, str]] = {
    "labml-nn": ("labml", "cade4cb79924", SDPA),
    "BLOOM and MPT": ("transformers", "32f609d6fb71", f"{ALIBI}_mpt"),
    "1e30 subtracted": ("transformers", "b93d69b5e8f2", XLNET),
    "added to hidden scores, as in Hugging Face's BLOOM": (
        "transformers",
        "bc20dd7e2e72",
        f"{ALIBI}_grad_bloom",
    ),
    "x-transformers' Attend": ("x_transformers", "58fb61ca5e21", ALIBI),
    "flash=True": ("x_transformers", "c88418b873f7", f"{ALIBI}_flash"),
    "where a hidden weight's gradient overflows": (
        "x_transformers",
        "8c227721f203",
        f"{ALIBI}_grad",
    ),
    "get_alibi_biases": ("labml", "879ae8e9df89", ALIBI),
    "keeps everything at mem_len 0": ("transformers", "d4aa7d14e1ad", "update_mems"),
}
"""Words of a cause that name a package; the example, the record and who fails on it."""

PACKAGES = {"labml": "labml_nn", "transformers": "transformers", "x_transformers": "x_transformers"}


@pytest.mark.parametrize("words", SHOWN)
def test_a_replay_of_public_code_names_it(words: str) -> None:
    example, record, name = SHOWN[words]
    pytest.importorskip(PACKAGES[example])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = load(str(EXAMPLES / f"{example}_backend.py"))
    (implementation,) = (i for i in backend.implementations if i.name == name)
    with pytest.raises(Disagreement) as told:
        replay(read_record(EXAMPLES / "failures" / f"{record}.json"), implementation)
    assert words in str(told.value)


def test_pytorchs_is_causal_is_named() -> None:
    told = [str(finding.cause) for finding in findings(f"{SDPA}_is_causal")]
    assert "PyTorch's is_causal" in told[0]


def test_another_kernel_is_told_by_no_package_that_it_is_not() -> None:
    told = [str(finding.cause) for finding in findings(f"{SDPA}_scaled_twice")]
    assert told and not any(packages in cause for cause in told for packages in PUBLIC.values())
