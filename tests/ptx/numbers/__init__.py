"""Tests of the instructions that compute numbers, against the PTX ISA stated number by number."""
