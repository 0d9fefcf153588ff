"""Which conventions a black box follows."""
