"""Conventions of caches: what is stored, and what it means."""
