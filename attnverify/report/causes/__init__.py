"""Which of the failed cells are causes, and how that is told."""
