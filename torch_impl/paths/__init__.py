"""What computes an attention: by name for the layers, the fastest for a plain name."""
