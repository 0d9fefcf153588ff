"""Whole numbers and bits."""

from attnverify.ptx.instructions.whole import bits, carries, dots, integers

__all__ = ["bits", "carries", "dots", "integers"]
