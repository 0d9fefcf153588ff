"""On which platforms attnverify is tested, and where it is only expected to work."""

PLATFORMS = {
    "Linux, x86-64": "tested at each commit, with Python 3.11, without a GPU; Python 3.12 and 3.13 "
    "are run by the workflow of the repository",
    "NVIDIA GPUs": "expected to work: no kernel was run on one yet; attnverify gpu-report is the "
    "first thing to run",
    "ROCm": "expected to work with PyTorch's own functions and Triton kernels, untested; the CUDA "
    "C++ kernels are not for it",
    "macOS": "expected to work on the processor, untested; --memory limits nothing there, Triton "
    "and CuPy are not installed",
    "Windows": "expected to work under WSL 2, untested; natively a backend given by path needs "
    "--isolate none",
}
"""What doctor prints and the README says."""
