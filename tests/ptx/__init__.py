"""Tests of the machine that executes PTX."""
