"""
What a kernel reads and writes: the memory of the device, that of a block, and who touched what.
"""
