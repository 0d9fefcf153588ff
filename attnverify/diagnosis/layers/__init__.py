"""What goes wrong inside a layer, and in its parameters."""
