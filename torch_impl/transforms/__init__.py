"""What PyTorch's own transformations make of the functions: autocast, and derivatives."""
