"""Hours of judging spread over many cores or machines."""
