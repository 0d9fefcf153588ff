"""Mistakes of the attentions of today."""
