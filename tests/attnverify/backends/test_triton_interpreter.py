"""A user's Triton kernel in Triton's interpreter, which the environment of its process asks for."""

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnverify import ROOT
from attnverify.backends import loader
from attnverify.backends.triton_interpreter import (
    NO_BFLOAT16,
    has_interpreted,
    mend_interpreter,
    with_lengths,
    without_bfloat16,
)
from tests.support.run_attnverify import verify

KERNEL = ROOT / "tests" / "sample_newcomers" / "triton_sdpa.py"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "words"), [("fp32", "1 cell: 1 passed"), ("bf16", f"does not compile: {NO_BFLOAT16}")]
)
def test_a_loop_is_judged_and_bfloat16_is_unsupported(
    dtype: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shutil.copy(KERNEL, "mine.py")
    done = verify("run", "-v", "mine.py", "--profile", "quick", "--dtype", dtype, "-k", "values")
    assert words in done.output
    assert "failed" not in done.output and "on cpu" in done.output


def test_it_is_mended_once_and_known_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = "triton.runtime.interpreter"
    monkeypatch.delitem(sys.modules, interpreter, raising=False)
    assert not mend_interpreter()
    monkeypatch.setitem(sys.modules, interpreter, SimpleNamespace(mended=True))  # type: ignore[arg-type]
    assert mend_interpreter()


def test_a_file_beside_one_with_kernels_is_not_interpreted() -> None:
    """Both are loaded in one process, where the interpreter is there for both."""
    kernel = type("InterpretedFunction", (), {"__module__": "triton.runtime.interpreter"})()
    tuned = type("Autotuner", (), {"__module__": "triton.runtime.autotuner"})()
    tuned.fn = kernel
    plain, kernels, tuning = (ModuleType(name) for name in ("plain", "kernels", "tuning"))
    vars(plain)["f"], vars(kernels)["f"], vars(tuning)["f"] = len, kernel, tuned
    assert [has_interpreted([module]) for module in (plain, kernels, tuning)] == [False, True, True]


def test_a_plain_file_is_loaded_as_one_while_the_interpreter_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "mend_interpreter", lambda: True)
    file = tmp_path / "plain.py"
    file.write_text("import numpy as np\n\n\ndef shift_right(x):\n    return np.array(x)\n")
    backend = loader.load(str(file))
    assert backend.implementations and not backend.interpreted


def test_an_array_of_one_number_ends_a_loop() -> None:
    class Tensor:
        handle = SimpleNamespace(data=np.array([3]))

    with_lengths(lambda tensor, scope: None)(Tensor, SimpleNamespace(set_attr=setattr))
    assert list(range(Tensor())) == [0, 1, 2]  # type: ignore[call-overload]


def numbers(dtype: str, stored: type) -> Any:
    return SimpleNamespace(dtype=SimpleNamespace(scalar=dtype), data=np.ones(2, stored))


def test_bits_are_not_added() -> None:
    add = without_bfloat16(lambda self, one, other, op: op(one.data, other.data))
    floats, bits = numbers("fp32", np.float32), numbers("bf16", np.uint16)
    assert (add(None, floats, floats, np.add) == 2).all()
    with pytest.raises(NotImplementedError, match=NO_BFLOAT16):
        add(None, bits, bits, np.add)
