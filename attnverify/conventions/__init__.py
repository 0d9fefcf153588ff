"""What an implementation may take otherwise than the specification without having slipped."""
