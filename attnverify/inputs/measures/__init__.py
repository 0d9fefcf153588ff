"""What is measured of a case, for the conditions of a region."""
