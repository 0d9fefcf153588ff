"""
CUDA C++: the source that a GPU runs.

``attention.cu`` and ``additive.cu`` are written against the names of ``primitives.cuh``, which
``device.cuh`` says in intrinsics and PTX and the emulation's ``host.hpp`` in plain C++, where a
block runs as fibers and every access to memory is checked.
"""
