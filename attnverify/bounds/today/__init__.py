"""Bounds of attention as it is written today, forwards and backwards."""
