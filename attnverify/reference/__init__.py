"""What the specification says of a case: expected outputs, bounds, replaceable stages."""
