"""
How small an error is noticed, and from which lengths a lost key and a narrow sum are.

The errors are planted in right implementations that compute in the arithmetic that they claim
(:mod:`tests.rounding_variants`), so that their own roundings stand beside the error.
``python -m tests.sight`` measures what the book shows and goes on where its file ends.
"""
