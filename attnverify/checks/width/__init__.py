"""Layers at the width of a model: a statistical bound, and the check that holds them to it."""
