"""
Mutants: one small change each to the specification, its vectorised form, the bounds, the
comparison, the refusals or the torch column, and whether a test notices it.

:mod:`tests.mutation.changes` says which changes there are, :mod:`tests.mutation.targets` which
files are changed and which tests must notice, :mod:`tests.mutation.trial` tries one mutant in a
copy of the tree. ``python -m tests.mutation`` goes on where its file ends.
"""
