"""
What a call must look like, whoever computes it: the one thing that the columns share.

Whether ``num_heads`` divides a width is no evidence about a kernel, so it is checked, and tested,
once: shapes by letters (:mod:`shapes`), integers, numbers, flags, lists, masks and draws
(:mod:`arguments`), and what the operations put together of these, by chapters. Only the standard
library is imported here. A column says how its arrays are recognised (:mod:`arrays`), and computes
by itself.

What is refused is a ``ValueError`` in one line, ``<argument>: wanted <what>, got <what came>``.
Types, dtypes and shapes are looked at, never a number on a device, but for arrays of integers
between limits and for lses.
"""
