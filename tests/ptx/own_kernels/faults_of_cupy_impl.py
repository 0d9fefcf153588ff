"""The faults that are planted in the CUDA kernels, ready to be planted in a loaded column."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from attnverify.cupy_impl.cuda import launch, source
from tests.cupy_impl.test_cuda_kernels import FAULTS, planted


def find_faults() -> dict[str, Any]:
    """By name: what plants it, the operation that shows it, and the dtype."""

    def plant(name: str) -> Any:
        def change(folder: Path, patch: pytest.MonkeyPatch) -> None:
            launch.compiled.cache_clear()
            kernels = folder / "kernels"
            shutil.copytree(source.FOLDER, kernels)
            planted(name, kernels)
            patch.setattr(source, "FOLDER", kernels)

        return change

    return {
        name: (plant(name), operation, "float16" if name == "fragments swapped" else "float32")
        for name, (_, operation, _, _) in FAULTS.items()
    }
