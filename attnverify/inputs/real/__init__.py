"""What every profile shows beside probes and draws: real calls, and each required kind."""
