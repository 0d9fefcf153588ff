"""CUDA kernels on a CPU: compiled by g++ and run block after block with every access checked."""
