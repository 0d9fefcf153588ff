"""
Kernels as users write them, with the mistakes that users make: one each, named after it, or two
(pairs.py).

They were written before the diagnosis was made to recognise them, and they share nothing with the
seeded faults. What may and what must not be said of each stands in
tests/attnverify/diagnosis/test_reasons.py.
"""

ARRAYS = "numpy"
PRECISION = "eager"
