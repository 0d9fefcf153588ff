"""Faults in shifts, relative positions, ALiBi, memory and layers."""
