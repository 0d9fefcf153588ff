"""What is known of PyTorch's tensors: which bytes were written, and where they lie."""
