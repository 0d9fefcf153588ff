"""Which cases fail: the conditions that tell them from those that pass."""
