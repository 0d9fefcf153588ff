"""What a run says of itself while it lasts."""
