"""Mistakes of kernels that walk over tiles of keys, in stages and by sequences."""
