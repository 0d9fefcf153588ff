"""
Triton kernels and the operators that launch them. Nothing here is imported before a ``_triton``
implementation is called.
"""
