"""
Benchmarks that can be believed: cases, contestants, interleaved samples, ceilings of the same run,
and their report.
"""
