"""Asks the interpreter to end, politely."""

import sys

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    sys.exit(0)
