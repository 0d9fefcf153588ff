"""
Sequences laid end to end: every backend against the specification, and what holds of it without
one.
"""

from attnverify.differential import *

CHAPTER = "packed"
