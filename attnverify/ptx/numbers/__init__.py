"""
The arithmetic of a GPU, apart from its instructions: formats, single roundings, stated errors,
tensor cores.
"""
