"""A factor that no element shows is found on the inputs that somebody brings."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

import attnverify as av
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks import given_factors
from attnverify.checks.given_factors import given_factor_checks, move
from attnverify.failures.record import load_records, recorded_checks

rng = np.random.default_rng(1)
F, H = 48, 4
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
PARAMETERS = {f"{name}.weight": rng.normal(0, F**-0.5, (F, F)) for name in NAMES} | {
    f"{name}.bias": rng.normal(0, 0.1, F) for name in NAMES
}
X = rng.normal(size=(2, 32, F))
OF_A_LAYER = {"query": X, "key": X, "value": X, "parameters": PARAMETERS, "num_heads": H}
OF_AN_ATTENTION = {name: rng.normal(size=(1, 2, 40, 16)) / 4 for name in ("query", "key", "value")}


def attend(query: Any, key: Any, value: Any, gain: float) -> Any:
    score = gain * query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    weights = torch.softmax(score, -1)
    return weights @ value, weights


def attention(gain: float) -> Any:
    def scaled_dot_product_attention(query: Any, key: Any, value: Any) -> Any:
        return attend(query, key, value, gain)[0]

    return scaled_dot_product_attention


def layer(gain: float) -> Any:
    def multi_head_attention(
        query: Any, key: Any, value: Any, parameters: Any, num_heads: int
    ) -> Any:
        def project(name: str, x: Any) -> Any:
            return linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

        heads = (
            project(name, x).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for name, x in zip(NAMES, (query, key, value), strict=False)
        )
        output, weights = attend(*heads, gain)
        return project("out_proj", output.transpose(1, 2).flatten(-2)), weights

    return multi_head_attention


KERNELS = {
    "multi_head_attention": (layer, OF_A_LAYER),
    "scaled_dot_product_attention": (attention, OF_AN_ATTENTION),
}


def judge(operation: str, gain: float, folder: Path) -> av.Report:
    kernel, inputs = KERNELS[operation]
    return av.check(kernel(gain), operation, dtype="bfloat16", inputs=inputs, failures=str(folder))


@pytest.mark.parametrize("operation", KERNELS)
def test_a_scale_one_percent_off_is_found_in_bfloat16(operation: str, tmp_path: Path) -> None:
    with pytest.raises(av.CheckFailed, match=r"scale is (0\.9\d|1\.0\d)% high"):
        judge(operation, 1.01, tmp_path)


@pytest.mark.parametrize("operation", KERNELS)
def test_rounding_alone_is_no_factor(operation: str, tmp_path: Path) -> None:
    assert judge(operation, 1.0, tmp_path).passed


def test_without_the_check_it_would_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_factors, "MOST_PAIRS", 1)
    assert judge("multi_head_attention", 1.01, tmp_path).passed


def test_it_is_recorded_with_its_inputs_and_belongs_to_them(tmp_path: Path) -> None:
    with pytest.raises(av.CheckFailed):
        judge("multi_head_attention", 1.01, tmp_path)
    (record,) = load_records(str(tmp_path))
    assert record.check and Path(record.check["inputs"]).exists()
    (named,) = recorded_checks("multi_head_attention", "values", str(tmp_path))
    assert named == record.check


def test_an_operation_without_factors_has_no_such_check(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, x=np.ones((2, 3, 4)))
    assert CATALOGUE["shift_right"] and given_factor_checks("shift_right", str(file)) == []


def test_masks_and_zeros_stay_where_they_are() -> None:
    mask, x = np.array([[0.0, -np.inf]]), np.array([0.0, 1.0, -3.0])
    moved = move({"mask": mask, "query": x}, "float32", np.random.default_rng(1))
    assert moved["mask"] is mask and moved["query"][0] == 0
    assert 0 < np.abs(moved["query"] - x)[1] <= given_factors.MOVED + 2**-24
