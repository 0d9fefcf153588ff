"""
Backends: who is judged, loaded from a name or a path, with the adapters of their array libraries.
"""
