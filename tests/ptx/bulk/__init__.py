"""Barriers in memory, tensor maps and copies in bulk."""
