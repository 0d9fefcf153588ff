"""
``python -m benchmarks.gpu_report``: everything that wants a GPU, in one command that a
machine with one only has to start.
"""
