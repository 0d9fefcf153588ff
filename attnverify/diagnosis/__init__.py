"""From a failure to its likely cause and to the region of the inputs where it shows."""
