"""Faults that show at the sizes of real models alone: long keys, wide heads, full grids."""
