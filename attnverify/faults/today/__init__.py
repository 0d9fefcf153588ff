"""Faults of attention as it is written today: shared heads, caps, sinks, windows, merged parts."""
