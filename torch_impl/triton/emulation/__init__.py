"""Triton kernels on a CPU: its interpreter, made fit for loops up to a run-time length."""
