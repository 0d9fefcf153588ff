"""
The code paths of other processors, chosen by the environment on this one: our columns are held to
their bounds on each, in a process of its own, and the same recipe gives the same inputs.

:mod:`tests.machines.check` is what one process does, ``python -m tests.machines`` runs the main job
over the code paths and goes on where its file ends.
"""

try:
    from numpy._core._multiarray_umath import __cpu_dispatch__ as NUMPY_FEATURES
except ImportError:
    NUMPY_FEATURES = []
"""
What NumPy chooses its loops by, narrow first; versions name it differently, and warn of each
other's names.
"""
AVX512 = [name for name in NUMPY_FEATURES if name.startswith(("AVX512", "X86_V4"))]

CODE_PATHS: dict[str, dict[str, str]] = {
    "as it is": {},
    "oldest": {
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Prescott",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "NPY_DISABLE_CPU_FEATURES": " ".join(NUMPY_FEATURES),
    },
    "SSE": {
        "MKL_CBWR": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OMP_NUM_THREADS": "2",
    },
    "AVX": {
        "MKL_CBWR": "AVX",
        "OPENBLAS_CORETYPE": "Sandybridge",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "AVX",
        "OMP_NUM_THREADS": "3",
    },
    "AVX2": {
        "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": " ".join(AVX512),
    },
    "AMD": {
        "MKL_CBWR": "AUTO",
        "OPENBLAS_CORETYPE": "Zen",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "OMP_NUM_THREADS": "2",
    },
    "AVX512": {
        "MKL_CBWR": "AVX512",
        "OPENBLAS_CORETYPE": "SkylakeX",
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    },
    "threads": {"OMP_NUM_THREADS": "4"},
}
"""A covering set: each value of each variable is tried, not each pair of values."""

MKL_PATHS = (
    "COMPATIBLE",
    "SSE2",
    "SSE3",
    "SSSE3",
    "SSE4_1",
    "SSE4_2",
    "AVX",
    "AVX2",
    "AVX512",
    "AVX512_E1",
    "AUTO",
)
"""Every value of MKL_CBWR."""
