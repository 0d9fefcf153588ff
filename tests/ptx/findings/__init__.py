"""What the machine sees a kernel do wrong, and what it counts."""
