"""Judging one case: call, compare, look for side effects."""
