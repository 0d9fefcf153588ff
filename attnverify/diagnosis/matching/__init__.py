"""Which of the candidates explain what was seen: all of it, or which part."""
