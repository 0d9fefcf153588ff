"""Mistakes that any operation, or any attention, can show: candidates of a diagnosis."""
