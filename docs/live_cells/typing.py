"""
The one name of ``typing`` that the law uses: the whole module takes Brython a second to compile.
"""

Any = object
