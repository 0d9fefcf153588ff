"""
Draws hard inputs, runs any backend against the law, and judges every element by a derived bound.
"""
