"""
``attnverify identify`` reads conventions out of a black box: the right card for right ones, wrong
ones, and unknown ones.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.cli import main
from attnverify.diagnosis.identification.card import Answer, ConventionCard
from attnverify.diagnosis.identification.identify import card_of, identify
from attnverify.faults import registry
from tests.support.sample_backends import HERE

BOXES = str(HERE / "pytorch_conventions.py")
SDPA, ALIBI, LEARNED = (
    "scaled_dot_product_attention",
    "alibi_attention",
    "learned_relative_attention",
)


@lru_cache
def cards(backend: str = BOXES) -> dict[str, ConventionCard]:
    return {card.implementation: card for card in identify(load(backend))}


def others(card: ConventionCard) -> dict[str, str]:
    """The answers that are not the specification's."""
    return {
        question: found.said for question, found in card.answers.items() if not found.as_specified
    }


EXPECTED: dict[str, dict[str, str]] = {
    SDPA: {},
    f"{SDPA}_is_causal": {
        "keys without a mask": "not told apart: causal, top-left; always causal, top-left"
    },
    f"{SDPA}_hand_made": {
        "mask polarity": "True = hidden",
        "rows without keys": "mean of all values",
        "dropout scale": "1",
    },
    f"{ALIBI}_like_labml": {
        "ALiBi distance": "visible keys counted",
        "rows without keys": "NaN",
        "ALiBi dtype": "storage",
    },
    f"{ALIBI}_plain": {
        "ALiBi slopes, H no power of two": "2^(-8(h+1)/H) for every H",
        "causal alignment": "top-left",
        "ALiBi dtype": "storage",
    },
    f"{LEARNED}_like_labml": {"table alignment": "always end", "rows without keys": "NaN"},
    "update_mems_everything": {"memory window": "everything at mem_len 0"},
    "rel_shift_backwards": {
        "wrap": "none of: the row below; zero",
        "direction": "none of: to the left; to the right; none",
    },
    "causal_mask_top_left": {"causal alignment": "top-left"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_card_says_where_a_black_box_differs_from_the_specification(name: str) -> None:
    assert others(cards()[name]) == EXPECTED[name]


def test_what_is_asked_of_an_attention() -> None:
    assert {
        "scale",
        "keys without a mask",
        "mask polarity",
        "rows without keys",
        "float mask",
    } <= set(cards()[SDPA].answers)
    assert {"scale", "ALiBi slopes", "ALiBi sign", "causal alignment", "ALiBi dtype"} <= set(
        cards()[f"{ALIBI}_plain"].answers
    )
    assert cards()[f"{SDPA}_is_causal"].refused == ["is_causal takes no mask"]


@pytest.mark.parametrize("backend", ["numpy_ref", "torch_impl"])
def test_our_own_follow_the_specification(backend: str) -> None:
    assert {name: others(card) for name, card in cards(backend).items() if others(card)} == {}
    assert {
        SDPA,
        ALIBI,
        LEARNED,
        "transformer_xl_attention",
        "rel_shift",
        "multi_head_attention",
    } <= set(cards(backend))


FAULTS = {
    "alibi_attention_top_left": {"causal alignment": "top-left"},
    "alibi_attention_plain_series": {
        "ALiBi slopes, H no power of two": "2^(-8(h+1)/H) for every H"
    },
    "alibi_attention_other_sign": {"ALiBi sign": "grows with the distance"},
    "scaled_dot_product_attention_unscaled": {"scale": "1"},
    "transformer_xl_score_unshifted": {"position shift": "none"},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_read_off(name: str) -> None:
    fault = registry.read_faults()[name]
    backend = Backend("faults", "faults", library=array_library("numpy"), precision=fault.precision)
    implementation = Implementation(
        backend, fault.operation, "faulty", adapt_signature(fault.fresh(), fault.operation)
    )
    assert others(card_of(implementation, "float32")) == FAULTS[name]


LIMITS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "E = D": lambda x: x["query"].shape[-1] == x["value"].shape[-1],
    "N = M": lambda x: x["query"].shape[-2] == x["key"].shape[-2],
    "an even H": lambda x: x["query"].shape[1] % 2 == 0,
    "no mask": lambda x: x.get("mask", x.get("visible")) is None,
    "align = start": lambda x: x.get("align", "start") == "start",
}


@pytest.mark.parametrize("operation", [SDPA, LEARNED])
def test_a_kernel_of_many_limits_is_asked_what_it_takes(operation: str) -> None:
    def limited(**inputs: Any) -> Any:
        if not all(holds(inputs) for holds in LIMITS.values()):
            raise NotImplementedError("limited")
        return CATALOGUE[operation].reference(**inputs)

    backend = Backend("limited", "limited", library=array_library("numpy"), precision="wide")
    own = CATALOGUE[operation]
    function = adapt_signature(limited, own)
    card = card_of(Implementation(backend, own, operation, function), "float32")
    assert card.answers["scale"].as_specified and card.refused == ["limited"]
    assert others(card) == {}


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_the_specification_is_recognised_in_every_dtype(dtype: str) -> None:
    assert [others(card) for card in identify(load("numpy_ref"), dtype) if others(card)] == []


def test_the_command_prints_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", BOXES]) == 0
    printed = capsys.readouterr().out
    assert "update_mems_everything of pytorch_conventions (float32)\n  memory window " in printed
    assert "everything at mem_len 0    (the specification: the last mem_len)" in printed


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", BOXES, "--json"]) == 0
    found = {card["implementation"]: card for card in json.loads(capsys.readouterr().out)}
    answer = found["causal_mask_top_left"]["answers"]["causal alignment"]
    assert answer == {"answer": "top-left", "specification": "end", "as specified": False}


def test_what_cannot_be_loaded_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["identify", str(tmp_path / "nothing.py")]) == 2
    assert "no file" in capsys.readouterr().err


def test_an_answer_knows_whether_it_is_the_laws() -> None:
    assert Answer("end", "end").as_specified and not Answer("top-left", "end").as_specified
