"""How a user's function is called, whatever its arguments are called and its options look like."""
