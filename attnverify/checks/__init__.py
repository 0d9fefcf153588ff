"""Checks that are no comparison of one case: invalid calls, sequences, relations, long inputs."""
