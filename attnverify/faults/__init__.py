"""
Seeded faults: the catalogue's operations with one thing wrong, and controls, which are only
unusual.
"""

from attnverify.faults.registry import Fault, control, fault, read_faults

__all__ = ["Fault", "control", "fault", "read_faults"]
