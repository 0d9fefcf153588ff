"""Barriers in memory (mbarrier), tensor maps, and copies in bulk (TMA)."""

from attnverify.ptx.instructions.bulk import barriers, copies, tensors

__all__ = ["barriers", "copies", "tensors"]
