"""Leaves a child process behind at each call."""

import subprocess

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    subprocess.Popen(["sleep", "98765"])
    return right(x)
