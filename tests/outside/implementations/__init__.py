"""
54 implementations out of public packages, each by the adapter that its user would write, and what
must be told of it: written down before any of them was judged.
"""
