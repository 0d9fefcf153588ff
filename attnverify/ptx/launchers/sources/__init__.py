"""CUDA sources in a Python file: their kernels on the machine, their launchers on the host."""
