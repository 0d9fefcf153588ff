"""Mutants of a specification: one thing changed in its source, steps, arguments or gradient."""
