"""Bounds for the gradients, each beside the formula that it is the majorant of."""
