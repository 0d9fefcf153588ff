"""
Fused kernels in CUDA C++: the source that a GPU runs, and two ways to run it.

``attention.cu`` and ``additive.cu`` are written against the names of ``primitives.cuh``, which
``device.cuh`` says in intrinsics and PTX and ``host.hpp`` in plain C++, where a block runs as
fibers and every access to memory is checked. :mod:`cupy_impl.kernels.launch` compiles an instance
and runs it where the arrays are.
"""
