"""What each instruction of PTX does, held to a statement of its own."""
