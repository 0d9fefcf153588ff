"""What a test may leave behind in its process, and what not."""

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping

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


def modules_of_temporary_files(names: Iterable[str]) -> list[str]:
    """Those of these imported modules whose file lies in the folder for temporary files."""
    folder = os.path.realpath(tempfile.gettempdir()) + os.sep
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return sorted(
        name for name, file in files.items() if file and os.path.realpath(file).startswith(folder)
    )
