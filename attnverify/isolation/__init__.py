"""A process for each backend that is given by path: time, memory and output under guard."""
