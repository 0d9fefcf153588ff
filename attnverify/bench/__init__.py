"""
Benchmarks that can be believed: cases, contestants, interleaved samples, ceilings of the same run,
goals and their report.
"""
