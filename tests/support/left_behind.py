"""What a test may leave behind in its process, and what not."""

from collections.abc import Mapping

LIBRARIES = ("CUBLAS_WORKSPACE_CONFIG", "CUDA_HOME", "CUDA_MODULE_LOADING", "KMP_", "PYTEST_")
LIBRARIES += (
    "TORCHINDUCTOR_",
    "_TORCHINDUCTOR_",
    "TORCH_",
    "TRITON_CACHE_DIR",
    "TRITON_PTXAS_PATH",
)
LIBRARIES += ("TRITON_LIBDEVICE_PATH", "DISABLE_CUPTI_LAZY_REINIT", "TEARDOWN_CUPTI")
"""The beginnings of variables that libraries set for themselves when they are first used."""


def environment_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The variables that have come, gone or changed, but for those of libraries."""
    changed = {name for name, _ in before.items() ^ after.items()}
    return sorted(name for name in changed if not name.startswith(LIBRARIES))
