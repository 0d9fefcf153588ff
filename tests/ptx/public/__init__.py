"""Kernels of public repositories on the machine: drivers of our own, files from checkouts."""
