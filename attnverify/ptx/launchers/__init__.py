"""
Where a GPU would be: Triton, NVRTC and CuPy, each with the machine behind it. Nothing here is
imported by the machine.
"""
