"""The races of ``tests/bench_*.py``: which cases, what is kept of them, and our goals."""
