"""Faults in what a call may do: invalid calls, memory layouts, side effects, kept state."""
