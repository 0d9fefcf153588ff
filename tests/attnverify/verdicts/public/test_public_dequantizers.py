"""
How public caches of eight bits are read, in our words: the right ones pass, the wrong ones fail and
are told by their own cause.
"""

from pathlib import Path

import pytest

from tests.support.judge_text import judged

HEAD = """
import torch
DTYPES = ("float32", "float16", "bfloat16")

def dequantize(stored, descale, kv_cache_dtype):
    if kv_cache_dtype == "int8":
        x = stored.float()
    else:
        x = stored.view(torch.float8_e4m3fn).float()
"""

RIGHT = {
    "as flash-attention 3's attention_ref": """
    return (x * descale[..., None].float()).to(descale.dtype)""",
    "as KIVI, in the dtype of the model": "    return x.to(descale.dtype) * descale.unsqueeze(-1)",
}
WRONG = {
    "sgl-kernel-xpu 252": (
        "    return (x * descale.flatten()[0]).to(descale.dtype)",
        "one scale for all rows",
    ),
    "a scale as when storing": (
        "    return (x / descale[..., None].float()).to(descale.dtype)",
        "a scale that divides",
    ),
    "tokenspeed 759": ("    return x.to(descale.dtype)", "a given scale ignored"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_one_passes(name: str, dtype: str, tmp_path: Path) -> None:
    result = judged(tmp_path, f"{HEAD}{RIGHT[name]}\n", dtype)
    assert (result.verdict, result.strong >= 10) == ("passed", True), result.findings


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_told(name: str, tmp_path: Path) -> None:
    body, words = WRONG[name]
    result = judged(tmp_path, f"{HEAD}{body}\n")
    told = [cause for finding in result.findings for cause in finding.causes]
    assert result.verdict == "failed"
    assert told and all(words in cause for cause in told), told
