"""Cells and their verdicts."""
