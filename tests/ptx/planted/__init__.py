"""Bugs planted in small kernels that have nothing to do with attention, with repaired twins."""
