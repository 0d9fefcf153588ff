"""PTX as it is written: operands, instructions, and the bodies of kernels."""
