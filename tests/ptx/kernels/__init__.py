"""Whole kernels on the machine: ours, planted faults in them, those of others."""
