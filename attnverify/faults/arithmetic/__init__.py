"""Faults in scale, softmax, rounding, dropout, additive scores and gradients."""
