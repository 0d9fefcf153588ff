"""Factors that explain a failure which no convention and no known fault does."""
