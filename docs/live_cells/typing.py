"""
The one name of ``typing`` that the specification uses: the whole module takes Brython a second to
compile.
"""

Any = object
