"""Inputs as small recipes, how they are drawn, and how they are expanded to arrays."""
