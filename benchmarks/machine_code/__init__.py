"""
What the assembler makes of the kernels, without a GPU: issue slots, registers, spills.

``python -m benchmarks.machine_code`` prints the table beside its goals.
"""
