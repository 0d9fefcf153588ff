"""How a launch is executed: its blocks in turns, their threads side by side, their barriers."""
