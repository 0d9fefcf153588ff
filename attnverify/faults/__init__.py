"""
Seeded faults: the catalogue's operations with one thing wrong.
"""

from attnverify.faults.registry import Fault, fault, read_faults

__all__ = ["Fault", "fault", "read_faults"]
